#!/usr/bin/env python3
"""A driver without Spark: takes spark-submit's command line, claims its job, reports, ends as the job's request asks.

The request's ``fake`` says how: ``rows``, ``seconds``, ``until`` (a file: the driver goes on until it exists) and
``end`` ("DONE", "FAILED", "exit", "hang", "deaf"). The variable ``FAKE_DRIVER_ENDS`` is a JSON object of ends by
column, for requests that come over the wire. It imports the standard library only, so that it starts in a fraction of
a second. Every claim and every accepted terminal report is appended to the file ``FAKE_DRIVER_TRACE``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any


def main() -> int:
    arguments = sys.argv[1:]
    job_id, attempt, url = (arguments[arguments.index(name) + 1] for name in ("--job-id", "--attempt", "--namespace"))
    with open(os.environ["LANCE_JOB_TOKEN_FILE"]) as file:
        token = json.load(file)["launch_token"]
    print(f"fake driver of {job_id}, attempt {attempt}", flush=True)
    if os.environ.get("FAKE_DRIVER_EXIT"):
        print("no cluster to be seen anywhere", file=sys.stderr)
        return int(os.environ["FAKE_DRIVER_EXIT"])
    claim = post(url, "claim", {"job_id": job_id, "attempt": int(attempt), "launch_token": token})
    if claim is None:
        return 3
    trace(f"claim {job_id} {attempt}")
    request = claim["spec"]["request"]
    end = json.loads(os.environ.get("FAKE_DRIVER_ENDS", "{}")).get(request.get("column"), "DONE")
    how = {"rows": 1000, "failed": 0, "seconds": 0.2, "end": end} | (request.get("fake") or {})
    report = {"job_id": job_id, "claim_token": claim["claim_token"], "seq": 0}
    start, steps = time.monotonic(), 0
    while (spent := time.monotonic() - start) < how["seconds"] or goes_on(how):
        done = int(how["rows"] * min(1.0, spent / max(how["seconds"], 0.01)))
        report["seq"] += 1
        report["progress"] = {
            "phase": "compute",
            "rows_done": done,
            "rows_total": how["rows"],
            "rows_per_second": how["rows"] / max(how["seconds"], 0.01),
        }
        report["events"] = [{"message": f"step {steps}", "at_ms": int(time.time() * 1000), "step": steps}]
        steps += 1
        answer = post(url, "report", report)
        if answer is None:
            return 4
        if answer["cancel"] and how["end"] != "deaf":
            return finish(url, report, job_id, attempt, {"state": "CANCELLED", "result": {"rows_assigned": done}})
        time.sleep(min(0.1, claim["heartbeat_seconds"]))
    if how["end"] == "exit":
        print("ran out of luck", file=sys.stderr)
        return 1
    if how["end"] == "FAILED":
        failure = {"phase": "compute", "message": "division by zero", "retryable": False}
        return finish(url, report, job_id, attempt, {"state": "FAILED", "failure": failure})
    result = {"rows_assigned": how["rows"], "rows_failed": how["failed"], "rows_remaining": 0, "source_version": 1}
    if how["failed"]:
        result["failed_rows"] = [{"row_id": 7, "message": "ValueError: no 7 here"}]
    return finish(url, report, job_id, attempt, {"state": "DONE", "result": result | {"published_version": 2}})


def goes_on(how: dict[str, Any]) -> bool:
    return how["end"] in {"hang", "deaf"} or ("until" in how and not os.path.exists(how["until"]))


def finish(url: str, report: dict[str, Any], job_id: str, attempt: str, terminal: dict[str, Any]) -> int:
    report = {**report, "seq": report["seq"] + 1, "events": [], "terminal": terminal}
    answer = post(url, "report", report)
    if answer is None:
        return 5
    trace(f"end {job_id} {attempt} {answer['state']}")
    return 0


def post(url: str, verb: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """The answer, or None when the server says that this attempt is over. Waits for a server that is away."""
    until = time.monotonic() + 40
    while True:
        request = urllib.request.Request(
            f"{url}/v1/jobs/{verb}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            print(verb, error.code, error.read(), flush=True)
            if error.code < 500:
                return None
        except OSError as error:
            print(verb, error, flush=True)
        if time.monotonic() > until:
            return None
        time.sleep(0.1)


def trace(line: str) -> None:
    with open(os.environ["FAKE_DRIVER_TRACE"], "a") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())

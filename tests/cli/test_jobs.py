"""``backfill``, ``refresh`` and ``jobs``: submit a job, follow it, look at it, end it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from airflow_provider_lance.api.jobs import Job, result_text
from airflow_provider_lance.cli.job_text import outcome, print_sample
from tests.cli.conftest import Run
from tests.namespace.conftest import QUICK, submission
from tests.namespace.jobs.test_supervisor import jobs_of
from tests.namespace.server_process import ROOT, ServerProcess

JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


@pytest.fixture
def url(server: ServerProcess) -> list[str]:
    return ["--url", server.url]


def start(*arguments: str) -> subprocess.Popen[str]:
    """The command in a process of its own, which can be interrupted."""
    return subprocess.Popen(
        [sys.executable, "-m", "airflow_provider_lance.cli", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        stderr=subprocess.PIPE,
    )


def test_backfill_waits_and_says_what_was_done(run: Run, url: list[str]) -> None:
    answer = run("backfill", "articles", "length", *url)
    assert answer.status == 0, answer.err
    done = r"articles\.length: 1,000 rows computed, version 2, in \d+\.\d s \(job (\S+)\)\n"
    assert re.fullmatch(done, answer.out)
    states = [line.split()[0] for line in answer.err.splitlines()]
    assert states[-1] == "DONE"
    assert set(states) <= {"QUEUED", "RUNNING", "DONE"}


def test_refresh_of_a_view(run: Run, url: list[str]) -> None:
    answer = run("refresh", "long_titles", "--full", *url)
    assert answer.status == 0, answer.err
    job = json.loads(run("jobs", "show", JOB_ID.findall(answer.out)[0], "--json", *url).out)
    assert job["job_type"] == "refresh_materialized_view"
    assert job["spec"]["request"] == {"full": True}


def test_the_options_of_a_backfill_are_its_request(run: Run, url: list[str]) -> None:
    more = ["--where", "id > 2", "--cluster", "local", "--concurrency", "3", "--max-failed-rows", "7", "--plan"]
    job = json.loads(run("backfill", "articles", "length", *more, "--json", *url).out)
    assert job["job_state"] == "DONE"
    assert job["spec"]["request"] == {"column": "length", "where": "id > 2", "cluster": "local", "concurrency": 3}
    assert job["spec"]["options"] == {"plan": "true", "max_failed_rows": "7"}


def test_only_failed_and_a_sample_are_entries_of_the_context(run: Run, url: list[str]) -> None:
    job = json.loads(run("backfill", "articles", "length", "--only", "failed", "--plan", "--json", *url).out)
    assert job["spec"]["options"] == {"plan": "true", "only": "failed"}
    job = json.loads(run("sample", "articles", "length", "--rows", "3", "--where", "id > 2", "--json", *url).out)
    assert job["spec"]["options"] == {"sample": "3"}
    assert job["spec"]["request"] == {"column": "length", "where": "id > 2"}


def test_a_sample_is_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"row_address": 1, "inputs": {"text": "a" * 80}, "outputs": {"n": [1, 2]}},
        {"row_address": 2, "inputs": {"text": None}, "outputs": {"n": None}, "error": "ValueError: no text"},
    ]
    sample = {"rows": rows, "rows_failed": 1, "seconds_per_row": 0.5, "setup_seconds": 2.0}
    print_sample({"sample": sample})
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["text", "->", "n", "error"]
    assert first.split() == ["a" * 59 + "…", "[1,", "2]"]
    assert second.split() == ["null", "null", "ValueError:", "no", "text"]
    assert result_text({"rows_assigned": 0, "sample": sample, "estimated_seconds": 9.5}) == (
        "2 rows tried, 1 failed, 0.5 s a row after 2.0 s of setup; a backfill would take about 9.5 s"
    )


def test_no_wait_prints_the_id_alone(run: Run, url: list[str]) -> None:
    job_id = run("backfill", "articles", "length", "--no-wait", *url).out.strip()
    assert JOB_ID.fullmatch(job_id)
    answer = run("jobs", "show", job_id, "--wait", *url)
    assert answer.status == 0
    assert answer.out.startswith("articles.length: backfill_column DONE\n")
    assert "\noutcome    1,000 rows computed, version 2\n" in answer.out
    assert re.search(r"\ndriver     cold, after \d+\.\d s\n", answer.out)


def test_a_failed_job_says_the_same_on_its_page_in_the_log_and_here(
    run: Run, url: list[str], server: ServerProcess
) -> None:
    from airflow_provider_lance.tasks.job_outcome import describe_target, ended_event, job_failure

    answer = run("backfill", "articles", "broken", *url)
    assert answer.status == 1
    (job_id,) = JOB_ID.findall(answer.err)
    sentence = f"articles.broken: division by zero (job {job_id})"
    assert answer.err.splitlines()[-1] == f"airflow-lance: {sentence}"

    job = Job.from_wire(server.job(job_id))
    task_log = str(job_failure(ended_event(job), describe_target("articles", "broken")))
    assert task_log.splitlines()[0] == sentence
    assert httpx.get(f"{server.url}/ui/data/jobs/{job_id}").json()["sentence"] == sentence
    shown = run("jobs", "show", job_id, *url).out
    assert "\nreason     division by zero\n" in shown
    (row,) = [line for line in run("jobs", "list", *url).out.splitlines() if job_id in line]
    assert row.split()[:5] == [job_id, "FAILED", "backfill_column", "articles", "broken"]
    assert row.endswith("  division by zero")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["backfill", "artcles", "length"], "There is no table artcles. Did you mean articles?"),
        (["backfill", "articles", "nope"], "articles: There is no column 'nope'; the table has "),
        (["backfill", "articles", "title"], "articles: Column 'title' has no rule: "),
        (["backfill", "articles", "length", "--cluster", "x"], "There is no cluster 'x'"),
        (["refresh", "articles"], "articles is a table, not a materialized view."),
        (["refresh", "long_title"], "There is no table long_title. Did you mean long_titles"),
        (["jobs", "show", "nothing"], "There is no job 'nothing'."),
        (["jobs", "cancel", "nothing"], "There is no job 'nothing'."),
        (["jobs", "logs", "nothing"], "There is no job 'nothing'."),
        (["jobs", "list", "--state", "ended"], "`state` is 'ended'; it can be one of QUEUED, "),
    ],
)
def test_what_cannot_be_done_is_one_sentence(run: Run, url: list[str], arguments: list[str], sentence: str) -> None:
    answer = run(*arguments, *url)
    assert (answer.status, answer.out) == (1, "")
    assert sentence in answer.err
    assert answer.err.startswith("airflow-lance: ")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["backfill", "t", "c"], ["refresh", "v"], *(["jobs", *words] for words in (["list"], ["show", "x"]))]
)
def test_a_folder_runs_no_jobs_and_the_way_out_is_named(run: Run, lake: Path, arguments: list[str]) -> None:
    answer = run(*arguments, "--root", str(lake))
    assert answer.status == 1
    assert answer.err == (
        f"airflow-lance: A folder runs no jobs. Start a server for it with `airflow-lance serve --root {lake}`, and "
        "give `--url http://127.0.0.1:2333` instead of --root.\n"
    )


def test_ctrl_c_leaves_the_job_alone_and_says_how_to_end_it(run: Run, server: ServerProcess, url: list[str]) -> None:
    waiting = start("backfill", "articles", "endless", *url)
    assert waiting.stderr is not None
    while "RUNNING" not in (line := waiting.stderr.readline()):
        assert line, "the command ended before its job ran"
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=20)
    assert waiting.returncode == 130
    (job_id,) = set(JOB_ID.findall(said))
    assert said.splitlines()[-1] == (
        f"Job {job_id} goes on. `airflow-lance jobs show {job_id} --wait --url {server.url}` waits for it, "
        f"`airflow-lance jobs cancel {job_id} --url {server.url}` ends it."
    )
    assert "Traceback" not in said
    assert server.job(job_id)["job_state"] == "RUNNING"
    (row,) = [line for line in run("jobs", "list", "--state", "running", *url).out.splitlines() if job_id in line]
    assert "compute: rows " in row
    assert run("jobs", "cancel", job_id, *url).out == f"Job {job_id} was told to stop.\n"
    assert server.wait_for_end(job_id)["job_state"] == "CANCELLED"
    assert run("jobs", "cancel", job_id, *url).out == f"Job {job_id} is CANCELLED.\n"


def test_ctrl_c_cancels_where_that_was_asked_for(server: ServerProcess, url: list[str]) -> None:
    waiting = start("backfill", "articles", "endless", "--cancel-on-interrupt", *url)
    assert waiting.stderr is not None
    while "RUNNING" not in (line := waiting.stderr.readline()):
        assert line, "the command ended before its job ran"
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=20)
    assert waiting.returncode == 130
    (job_id,) = set(JOB_ID.findall(said))
    assert server.wait_for_end(job_id)["job_state"] == "CANCELLED"


def test_a_cancelled_job_ends_the_wait_with_its_sentence(run: Run, server: ServerProcess, url: list[str]) -> None:
    waiting = start("backfill", "articles", "endless", *url)
    until = time.monotonic() + 20
    while not (rows := run("jobs", "list", "--state", "running", "--json", *url).json_lines):
        assert time.monotonic() < until, "the job did not start"
    job_id = str(rows[0]["job_id"])
    run("jobs", "cancel", job_id, *url)
    _, said = waiting.communicate(timeout=30)
    assert waiting.returncode == 1
    assert said.splitlines()[-1].startswith("airflow-lance: articles.endless: The job was cancelled.")
    assert said.splitlines()[-1].endswith(f"(job {job_id})")


def test_done_jobs_are_listed_with_what_they_wrote(run: Run, url: list[str]) -> None:
    job_id = run("backfill", "articles", "length", "--no-wait", *url).out.strip()
    assert run("jobs", "show", job_id, "--wait", *url).status == 0
    listing = run("jobs", "list", "--table", "articles", "--state", "done", "--limit", "1", *url).out.splitlines()
    assert listing[0].split() == ["JOB", "STATE", "TYPE", "TABLE", "COLUMN", "SUBMITTED", "OUTCOME"]
    assert listing[1].endswith("  1,000 rows computed, version 2")
    (row,) = run("jobs", "list", "--state", "done", "--limit", "1", "--json", *url).json_lines
    assert row["job_id"] == job_id
    assert run("jobs", "list", "--table", "zebra", *url).err.endswith("has no such jobs.\n")


def test_a_job_of_a_task_is_listed_with_its_dag_and_task(run: Run, server: ServerProcess, url: list[str]) -> None:
    entries = {"dag-id": "Übung", "run-id": "manual__1", "task-id": "fill", "map-index": "3", "try": "2"}
    headers = {f"x-lance-ctx-{key}": value.replace("Ü", "%C3%9C") for key, value in entries.items()}
    answer = httpx.post(
        f"{server.url}/v1/table/articles/backfill_column",
        json={"column": "length", "cluster": "external"},
        headers=headers,
    )
    job_id = answer.json()["job_id"]
    try:
        heading, row = run("jobs", "list", "--state", "queued", *url).out.splitlines()[:2]
        at = heading.index("DAG · TASK")
        assert row[at:].startswith("Übung · fill[3]  ")
        shown = run("jobs", "show", job_id, *url).out
        assert re.search(r"^asked by +Übung · fill\[3\] · manual__1 · try 2$", shown, re.MULTILINE)
        refused = httpx.post(
            f"{server.url}/v1/table/articles/backfill_column",
            json={"column": "length"},
            headers={**headers, "x-lance-ctx-map-index": "third"},
        )
        assert refused.status_code == 400
        assert "`map-index` must be a whole number" in refused.json()["error"]
    finally:
        run("jobs", "cancel", job_id, *url)


def test_logs(run: Run, url: list[str], server: ServerProcess) -> None:
    job_id = JOB_ID.findall(run("backfill", "articles", "length", *url).out)[0]
    assert f"fake driver of {job_id}" in run("jobs", "logs", job_id, *url).out
    answer = run("jobs", "logs", job_id, "--attempt", "9", *url)
    assert answer.err == f"airflow-lance: {server.url} has no log of attempt 9 of job {job_id}.\n"


def test_a_job_without_a_local_log_says_where_it_is(run: Run, url: list[str]) -> None:
    job_id = run("backfill", "articles", "length", "--cluster", "external", "--no-wait", *url).out.strip()
    answer = run("jobs", "logs", job_id, *url)
    assert (answer.status, answer.out) == (1, "")
    assert answer.err == f"airflow-lance: Job {job_id} is QUEUED: no driver has started yet, so there is no log.\n"
    run("jobs", "cancel", job_id, *url)
    assert "it did not start the driver. The log is where the driver runs" in run("jobs", "logs", job_id, *url).err


def test_failed_rows_of_a_done_job_are_a_warning(run: Run, tmp_path: Path) -> None:
    from airflow_provider_lance.namespace.jobs.database import sqlite_url

    registry = sqlite_url(tmp_path / "jobs.sqlite")
    server = ServerProcess(tmp_path / "server", registry, timings=QUICK).start()
    try:
        with jobs_of(registry, tmp_path) as jobs:
            job_id = jobs.submit(submission("a", fake={"failed": 12}))
        shown = run("jobs", "show", job_id, "--wait", "--url", server.url).out
    finally:
        server.stop()
    assert "outcome      1,000 rows computed, 12 failed, version 2\n" in shown
    assert "12 of 1,012 rows failed and have no value. The first: row 7: ValueError: no 7 here.\n" in shown


def test_a_server_that_is_away_for_a_moment_is_asked_again(run: Run, tmp_path: Path) -> None:
    from tests.cli.conftest import ENDS, make_lake

    server = ServerProcess(tmp_path, timings=QUICK, driver_env={"FAKE_DRIVER_ENDS": json.dumps(ENDS)})
    make_lake(tmp_path / "lake")
    server.start()
    waiting = start("backfill", "articles", "endless", "--url", server.url)
    try:
        assert waiting.stderr is not None
        while "RUNNING" not in waiting.stderr.readline():
            pass
        server.kill()
        while "gave no answer; asking again." not in waiting.stderr.readline():
            pass
        server.start()
        (row,) = run("jobs", "list", "--json", "--url", server.url).json_lines
        run("jobs", "cancel", str(row["job_id"]), "--url", server.url)
        _, said = waiting.communicate(timeout=60)
        assert "The job was cancelled." in said
    finally:
        waiting.kill()
        server.stop()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"state": "DONE", "progress": {"phase": "starting"}}, ""),
        ({"state": "DONE", "result": {"mode": "no_op"}}, "nothing to do"),
        (
            {"state": "DONE", "result": {"mode": "incremental", "rows_written": 1, "rows_deleted": 2, "version": 4}},
            "1 row written, 2 rows deleted, version 4, by an incremental refresh",
        ),
        (
            {"state": "DONE", "result": {"plan": {"rows": 20000, "fragments": 2, "tasks": 4}}},
            "would compute 20,000 rows in 2 fragments, 4 tasks",
        ),
        (
            {"state": "DONE", "result": {"mode": "rebuild", "reason": "first", "plan": {"source_rows": 5}}},
            "would rebuild the view from 5 source rows (first)",
        ),
        ({"state": "QUEUED", "progress": {}}, ""),
        ({"state": "RUNNING", "cancel_requested": True}, "is being cancelled"),
        (
            {"state": "RUNNING", "progress": {"phase": "compute", "rows_done": 1, "rows_total": 4}},
            "25% compute: rows 1/4",
        ),
        ({"state": "FAILED", "failure": {"message": "no\nmore"}}, "no"),
        ({"state": "FAILED"}, ""),
    ],
)
def test_the_outcome_of_a_job_in_words(body: dict[str, object], words: str) -> None:
    assert outcome(Job.from_wire({"job_id": "j", **body})) == words

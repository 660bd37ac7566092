"""Makes the README's pictures from a real run: Airflow's graph of the quickstart, and its backfill job's page.

.venv/bin/python scripts/screenshots.py        needs a Chromium (CHROMIUM=/path, or on the PATH)
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from local import HERE, Local, fail
from ui import start_airflow

from airflow_provider_lance.api.wire import Wire

IMAGES = HERE / "docs" / "images"
DAG_ID = "lance_quickstart"


def main() -> None:
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        fail("No Chromium was found: install one, or name it with CHROMIUM=/path/to/chromium")
    folder = HERE / ".ui"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    IMAGES.mkdir(parents=True, exist_ok=True)
    with Local(folder) as local:
        local.start_namespace()
        url = start_airflow(local)
        run = finish_run(url)
        with Wire(local.namespace_url) as wire:
            rows = wire.call("list_jobs", {"state": "DONE"}).value["jobs"]
        job = min((row for row in rows if row["job_type"] == "backfill_column"), key=lambda row: row["creation_ms"])
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1400, "height": 760})
            page.goto(f"{url}/dags/{DAG_ID}/runs/{run}")
            page.wait_for_timeout(8000)
            page.screenshot(path=IMAGES / "airflow.png")
            page.set_viewport_size({"width": 1000, "height": 760})
            page.goto(f"{local.namespace_url}/ui/jobs/{job['job_id']}")
            page.wait_for_timeout(2000)
            page.screenshot(path=IMAGES / "job.png")
            browser.close()
    for image in IMAGES.glob("*.png"):
        print(image.relative_to(HERE), f"{image.stat().st_size / 1000:.0f} kB")


def finish_run(url: str) -> str:
    """Trigger the quickstart over REST and wait for its end."""
    token = call("GET", f"{url}/auth/token")["access_token"]
    dag = f"{url}/api/v2/dags/{DAG_ID}"
    until = time.monotonic() + 180
    while DAG_ID not in {row["dag_id"] for row in call("GET", f"{url}/api/v2/dags", token)["dags"]}:
        if time.monotonic() > until:
            fail("Airflow did not find the DAG.")
        time.sleep(2)
    body = {"logical_date": None, "conf": {"rows": int(os.environ.get("ROWS", "1000000"))}}
    run = str(call("POST", f"{dag}/dagRuns", token, body)["dag_run_id"])
    while (state := call("GET", f"{dag}/dagRuns/{run}", token)["state"]) in {"queued", "running"}:
        time.sleep(2)
    if state != "success":
        fail(f"The run ended as {state}.")
    return run


def call(method: str, url: str, token: str | None = None, body: Any = None) -> Any:
    request = urllib.request.Request(url, method=method, data=None if body is None else json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    if token:
        request.add_header("authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


if __name__ == "__main__":
    main()

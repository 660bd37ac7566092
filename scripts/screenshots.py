"""Makes the pictures of README and documentation from a real run of the README's own DAG.

It starts the namespace server and Airflow in a folder of its own, runs the DAG over a table of three million rows, and
looks at the job's page while the job runs and at the task's log afterwards.

make screenshots [ROWS=n]        needs a Chromium (CHROMIUM=/path, or on the PATH)
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import ui
from local import HERE, Local, fail, stop_on_signals
from samples import create_tables

from airflow_provider_lance.api.client import LanceClient
from airflow_provider_lance.api.http.wire import Wire
from airflow_provider_lance.api.jobs import Job

IMAGES = HERE / "docs" / "images"
DAG_ID = "nightly_features"
TASK = "fill"
WIDTH = 1100


def main() -> None:
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        fail("No Chromium was found: install one, or name it with CHROMIUM=/path/to/chromium")
    stop_on_signals()
    with tempfile.TemporaryDirectory(prefix="lance-screenshots-", ignore_cleanup_errors=True) as folder:
        ui.FOLDER = Path(folder)
        dags = ui.FOLDER / "dags"
        dags.mkdir()
        (dags / f"{DAG_ID}.py").write_text(readme_dag())
        with Local(ui.FOLDER, dags) as local:
            local.start_namespace()
            with ui.step("Creating the table"), LanceClient(local.namespace_url) as client:
                create_tables(client, int(os.environ.get("ROWS") or 3_000_000))
            airflow = Airflow(ui.start_airflow(local))
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
                page = browser.new_page(viewport={"width": WIDTH, "height": 800}, device_scale_factor=1.5)
                run = airflow.start_run()
                with Wire(local.namespace_url) as wire, ui.step("Waiting for the job to be mostly done"):
                    job = mostly_done(wire)
                page.goto(f"{local.namespace_url}/ui/jobs/{job.job_id}")
                page.get_by_text("RUNNING").first.wait_for()
                page.wait_for_timeout(4000)  # the page asks for the newest figures
                end = page.locator("#chart-words").bounding_box()
                height = end["y"] + end["height"] + 10 if end else 640
                page.screenshot(path=IMAGES / "job.png", clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
                with ui.step("Waiting for the run's end"):
                    airflow.finish(run)
                page.goto(f"{airflow.url}/dags/{DAG_ID}/runs/{run}/tasks/{TASK}")
                page.get_by_text("rows/s").first.wait_for(timeout=60_000)
                page.set_viewport_size({"width": 1540, "height": 700})
                page.wait_for_timeout(1000)
                page.screenshot(path=IMAGES / "log.png")
                browser.close()
    for image in sorted(IMAGES.glob("*.png")):
        print(image.relative_to(HERE), f"{image.stat().st_size / 1000:.0f} kB")


def readme_dag() -> str:
    """The first Python example of the README."""
    return re.findall(r"```python\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)[0]


def mostly_done(wire: Wire) -> Job:
    """The running backfill, once three quarters of its rows have values."""
    until = time.monotonic() + 600
    while time.monotonic() < until:
        rows = wire.call("list_jobs", {"state": "RUNNING"}).value["jobs"]
        for job in (Job.from_wire(row) for row in rows):
            if job.progress is not None and job.progress.fraction > 0.75:
                return job
        time.sleep(0.2)
    fail("No job had three quarters of its rows within ten minutes.")


class Airflow:
    """Airflow's REST API, for one DAG."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._token = self._call("GET", "/auth/token")["access_token"]

    def start_run(self) -> str:
        until = time.monotonic() + 180
        while True:
            try:
                body = {"logical_date": None}
                return str(self._call("POST", f"/api/v2/dags/{DAG_ID}/dagRuns", body)["dag_run_id"])
            except urllib.error.HTTPError as error:
                if error.code != 404 or time.monotonic() > until:
                    raise
                time.sleep(2)  # the DAG is not parsed yet

    def finish(self, run: str) -> None:
        while (state := self._call("GET", f"/api/v2/dags/{DAG_ID}/dagRuns/{run}")["state"]) in {"queued", "running"}:
            time.sleep(2)
        if state != "success":
            fail(f"The run ended as {state}.")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, method=method, data=data)
        request.add_header("content-type", "application/json")
        if path != "/auth/token":
            request.add_header("authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())


if __name__ == "__main__":
    main()

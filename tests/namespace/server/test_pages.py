"""The pages in a real browser: a running job's page shows its bar, its chart, its events, and cancels it."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.namespace.jobs.database import sqlite_url
from tests.namespace.conftest import QUICK, submission, wait_until
from tests.namespace.jobs.test_supervisor import jobs_of
from tests.namespace.server_process import ServerProcess

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1100,1000",
)

TASK_PAGE = "https://airflow.test/a/dags/%3Ci%3Eetl%3C%2Fi%3E/runs/manual__1%2B00%3A00/tasks/fill/mapped/3"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("pages")
    process = ServerProcess(
        folder / "server", sqlite_url(folder / "jobs.sqlite"), timings=QUICK, airflow_url="https://airflow.test/a/"
    ).start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def job_id(server: ServerProcess) -> str:
    """A job that runs while the tests look at it; its names try to be HTML."""
    assert server.registry is not None
    with jobs_of(server.registry, server.directory) as jobs:
        asked = {"dag-id": "<i>etl</i>", "run-id": "manual__1+00:00", "task-id": "fill", "map-index": "3", "try": "1"}
        found = jobs.submit(submission("<b>n</b>", "people", fake={"seconds": 120, "rows": 1_000_000}, context=asked))
    wait_until(lambda: len(data(server, found)["samples"]) >= 3)
    return found


def data(server: ServerProcess, job_id: str) -> JsonObject:
    found: JsonObject = httpx.get(f"{server.url}/ui/data/jobs/{job_id}").json()
    return found


def test_the_data_behind_a_page(server: ServerProcess, job_id: str) -> None:
    found = data(server, job_id)
    assert found["job"]["job_state"] == "RUNNING"
    assert found["job"]["progress"]["rows_total"] == 1_000_000
    times = [sample[0] for sample in found["samples"]]
    assert times == sorted(times)
    assert f"fake driver of {job_id}" in found["log"]
    assert any(event["message"].startswith("A driver claimed") for event in found["events"])
    listing = httpx.get(f"{server.url}/ui/data/jobs?state=RUNNING").json()
    assert [row["job_id"] for row in listing["jobs"]] == [job_id]
    assert listing["counts"]["RUNNING"] == 1
    assert httpx.get(f"{server.url}/ui/data/jobs/nothing").status_code == 404
    assert httpx.get(f"{server.url}/ui/data/jobs?state=sleepy").status_code == 400


def test_looking_at_a_page_is_no_waiting(server: ServerProcess) -> None:
    assert server.registry is not None
    with jobs_of(server.registry, server.directory) as jobs:
        job_id = jobs.submit(submission("w", cluster="external", context={"lease-seconds": "1"}))
    wait_until(lambda: data(server, job_id)["job"]["job_state"] != "QUEUED", seconds=10)
    assert "nobody waits" in data(server, job_id)["job"]["failure"]["message"]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium binary on the PATH")
class TestInChromium:
    def test_the_list(self, server: ServerProcess, job_id: str, tmp_path: Path) -> None:
        page = dump(f"{server.url}/ui", tmp_path)
        assert job_id[:8] in page
        assert "RUNNING" in page
        assert "&lt;b&gt;n&lt;/b&gt;" in page
        assert 'title="manual__1+00:00">&lt;i&gt;etl&lt;/i&gt; · fill[3]</a>' in page
        assert f'href="{TASK_PAGE}"' in page
        assert colours(screenshot(f"{server.url}/ui", tmp_path)) > 5

    def test_a_job(self, server: ServerProcess, job_id: str, tmp_path: Path) -> None:
        page = dump(f"{server.url}/ui/jobs/{job_id}", tmp_path)
        assert 'class="curve" d="M' in page
        assert "A driver claimed attempt 1" in page
        assert "1,000,000" in page
        assert "fake driver of" in page
        assert re.search(r"<dt>driver</dt><dd>cold, claimed after \d+\.\d s</dd>", page)
        assert f'<dt>task</dt><dd><a href="{TASK_PAGE}">fill[3]</a></dd><dt>run</dt><dd>manual__1+00:00</dd>' in page
        assert colours(screenshot(f"{server.url}/ui/jobs/{job_id}", tmp_path)) > 5

    def test_failed_rows_are_shown_and_the_bar_is_not_full(self, server: ServerProcess, tmp_path: Path) -> None:
        assert server.registry is not None
        with jobs_of(server.registry, server.directory) as jobs:
            job_id = jobs.submit(submission("holes", fake={"rows": 900, "failed": 100, "seconds": 0.1}))
        wait_until(lambda: data(server, job_id)["job"]["job_state"] == "DONE")
        for page in (dump(f"{server.url}/ui", tmp_path), dump(f"{server.url}/ui/jobs/{job_id}", tmp_path)):
            assert "100 rows failed (10.0 %)" in page
            assert 'value="0.9"' in page
            assert 'class="DONE incomplete"' in page
        assert "row 7: ValueError: no 7 here" in dump(f"{server.url}/ui/jobs/{job_id}", tmp_path)

    def test_the_bar_moves_and_the_button_cancels(self, server: ServerProcess) -> None:
        from playwright.sync_api import expect, sync_playwright

        assert server.registry is not None
        with jobs_of(server.registry, server.directory) as jobs:
            job_id = jobs.submit(submission("moving", fake={"seconds": 60, "rows": 1_000_000}))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page()
            page.set_default_timeout(30_000)
            page.goto(f"{server.url}/ui/jobs/{job_id}")
            expect(page.locator("#state")).to_have_text("RUNNING", timeout=30_000)
            bar = page.locator("#bar")
            first = wait_until(lambda: bar.evaluate("bar => bar.value"), 30)
            wait_until(lambda: bar.evaluate("bar => bar.value") > first, 30)
            page.get_by_role("button", name="Cancel").click()
            expect(page.locator("#state")).to_have_text("CANCELLED", timeout=30_000)
            expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
            expect(page.locator("#failure")).to_have_text(Job.from_wire(server.job(job_id)).failure_sentence)
            browser.close()
        assert server.job(job_id)["job_state"] == "CANCELLED"


def dump(url: str, folder: Path) -> str:
    """The page's DOM after its scripts ran for a while."""
    answer = subprocess.run(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'dump'}", "--virtual-time-budget=4000", "--dump-dom", url],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    return answer.stdout


def screenshot(url: str, folder: Path) -> Path:
    target = folder / "page.png"
    profile = f"--user-data-dir={folder / 'shot'}"
    subprocess.run(
        [str(CHROMIUM), *FLAGS, profile, "--virtual-time-budget=4000", f"--screenshot={target}", url],
        capture_output=True,
        timeout=90,
        check=True,
    )
    return target


def colours(png: Path) -> int:
    """How many different bytes the picture's rows hold: a blank page has very few."""
    content, position, packed = png.read_bytes(), 8, b""
    while position < len(content):
        (length,) = struct.unpack(">I", content[position : position + 4])
        if content[position + 4 : position + 8] == b"IDAT":
            packed += content[position + 8 : position + 8 + length]
        position += 12 + length
    return len(set(zlib.decompress(packed)))

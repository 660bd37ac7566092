"""``make ui`` in a real browser: the connection form, the Trigger form, a green run, and its job's page."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_provider_lance.namespace.processes import find_processes

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH: browser tests are left out"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("ui")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    child = subprocess.Popen(
        [sys.executable, ROOT / "scripts" / "ui.py"],
        env={**environment, "LANCE_UI_FOLDER": str(folder), "ROWS": "20000", "PYTHONPATH": str(ROOT)},
        stdout=(folder / "ui.log").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    mark = f"AIRFLOW_LANCE_LOCAL={folder}:{child.pid}"
    try:
        until = time.monotonic() + 300
        while "Ctrl-C" not in (told := (folder / "ui.log").read_text()):
            assert child.poll() is None, told
            assert time.monotonic() < until, told
            time.sleep(0.5)
        started = list(find_processes(mark))
        assert started
        airflow, lance = re.findall(r"http://\S+", told)[:2]
        yield {"airflow": airflow, "lance": lance}
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(60)
    left = list(find_processes(mark, set(started)))
    assert not left, "one Ctrl-C stops every process"


@pytest.fixture
def page(ui: dict[str, str]) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_page(viewport={"width": 1400, "height": 1400})
        shown.set_default_timeout(60_000)
        yield shown
        browser.close()


def test_the_connection_form_shows_our_fields(ui: dict[str, str], page: Any) -> None:
    page.goto(f"{ui['airflow']}/connections")
    page.get_by_role("button", name="Add Connection").click()
    kind = page.get_by_role("combobox").last
    kind.click()
    kind.fill("lance")
    page.keyboard.press("Enter")
    form = page.locator("[role=dialog]").filter(has_text="Connection Type")
    for label in ("Host or URL", "OAuth2 client id", "API key, bearer token or client secret"):
        form.get_by_text(label, exact=True).wait_for()
    form.get_by_role("button", name="Extra Fields", exact=True).click()
    form.get_by_text("Delimiter").first.wait_for()


def test_the_trigger_form_rejects_accepts_and_leads_to_the_job(ui: dict[str, str], page: Any) -> None:
    api = httpx.Client(base_url=ui["airflow"], timeout=30)
    api.headers["authorization"] = f"Bearer {api.get('/auth/token').json()['access_token']}"

    def trigger(table: str) -> str:
        page.goto(f"{ui['airflow']}/dags/lance_backfill")
        page.get_by_role("button", name="Trigger").first.click()
        form = page.locator("[role=dialog]").filter(has_text="Run Parameters")
        field, button = form.locator("[name=element_table]"), form.get_by_role("button", name="Trigger")
        field.fill("")
        page.wait_for_timeout(500)
        assert not button.is_enabled()  # a table is required
        field.fill(table)
        button.click()
        page.wait_for_url(re.compile(r"/runs/"))
        return page.url.rsplit("/runs/", 1)[1].split("?")[0]

    def ended(run: str) -> str:
        until = time.monotonic() + 400
        while True:
            state = api.get(f"/api/v2/dags/lance_backfill/dagRuns/{run}").json()["state"]
            if state in {"success", "failed"}:
                return state
            assert time.monotonic() < until, state
            time.sleep(1)

    wrong, right = trigger("artikles"), trigger("articles")
    assert ended(wrong) == "failed"
    logs = api.get(f"/api/v2/dags/lance_backfill/dagRuns/{wrong}/taskInstances/check/logs/1").text
    assert "There is no table 'artikles'. Near names: articles" in logs.replace('\\"', '"')
    assert ended(right) == "success"
    page.goto(f"{ui['airflow']}/dags/lance_backfill/runs/{right}/tasks/backfill/details")
    link = page.locator("a[href*='/ui/jobs/']").filter(has_text="Lance job").first
    page.goto(link.get_attribute("href"))
    page.get_by_text("DONE", exact=True).first.wait_for()
    page.get_by_text("20,000 of 20,000").wait_for()

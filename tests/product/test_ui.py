"""``make ui``: it starts again and again at the same addresses, for this machine only; and in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from airflow_provider_lance.namespace.processes import find_processes
from tests.listening import listening

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH: browser tests are left out")
pytestmark = pytest.mark.timeout(1500)

sys.path.insert(0, str(ROOT / "scripts"))
from local import free_port, remembered_port  # noqa: E402


class Ui:
    """One ``make ui`` in a folder; its addresses are there once it told them."""

    def __init__(self, folder: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        self.log = folder / "ui.log"
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                [sys.executable, ROOT / "scripts" / "ui.py"],
                env={**environment, "LANCE_UI_FOLDER": str(folder), "ROWS": "20000", "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.mark = f"AIRFLOW_LANCE_LOCAL={folder}:{self.child.pid}"

    def __enter__(self) -> Ui:
        until = time.monotonic() + 600
        while "Ctrl-C" not in (told := self.log.read_text()):
            assert self.child.poll() is None, told
            assert time.monotonic() < until, told
            time.sleep(0.5)
        self.airflow, self.lance = re.findall(r"http://\S+", told)[:2]
        self.started = set(find_processes(self.mark))
        assert self.started
        return self

    def __exit__(self, *_: object) -> None:
        self.child.send_signal(signal.SIGINT)
        self.child.wait(60)
        left = list(find_processes(self.mark, self.started))
        assert not left, "one Ctrl-C stops every process"

    def open_ports(self) -> dict[int, str]:
        # Airflow's processes write their titles over the environment where the mark would be.
        parent = psutil.Process(self.child.pid)
        return listening(
            {parent.pid, *find_processes(self.mark), *(each.pid for each in parent.children(recursive=True))}
        )


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    """The second start in one folder."""
    folder = tmp_path_factory.mktemp("ui")
    # Not the usual 2333 and 8080: tests run beside each other.
    (folder / "ports.json").write_text(json.dumps({"namespace": free_port(), "airflow": free_port()}))
    with Ui(folder) as first:
        addresses = (first.airflow, first.lance)
    with Ui(folder) as second:
        assert (second.airflow, second.lance) == addresses, "the same addresses again"
        yield second


@pytest.fixture(scope="module")
def api(ui: Ui) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=ui.airflow, timeout=60) as client:
        client.headers["authorization"] = f"Bearer {client.get('/auth/token').json()['access_token']}"
        yield client


def test_ports_are_remembered_as_long_as_they_are_free(tmp_path: Path) -> None:
    preferred = free_port()
    assert remembered_port(tmp_path, "airflow", preferred) == preferred
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", preferred))
        taken.listen()
        other = remembered_port(tmp_path, "airflow", preferred)
    assert other != preferred
    assert remembered_port(tmp_path, "airflow", preferred) == other, "job links in old logs still work"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's table of sockets is in /proc on Linux only")
def test_nothing_listens_beyond_this_machine_while_a_job_runs(ui: Ui, api: httpx.Client) -> None:
    dag = "/api/v2/dags/lance_embed"
    until = time.monotonic() + 300
    while api.get(dag).status_code != 200:
        assert time.monotonic() < until, "the DAG was not parsed"
        time.sleep(1)
    before = ui.open_ports()
    run = api.post(f"{dag}/dagRuns", json={"logical_date": None}).json()["dag_run_id"]
    seen = dict(before)
    while (state := api.get(f"{dag}/dagRuns/{run}").json()["state"]) in {"queued", "running"}:
        seen |= ui.open_ports()
        assert time.monotonic() < until + 400, state
        time.sleep(0.2)
    assert state == "success"
    ports = {int(url.rpartition(":")[2].partition("/")[0]) for url in (ui.airflow, ui.lance)}
    assert ports <= set(before)
    assert set(seen) - set(before), "Spark's driver was seen"
    assert set(seen.values()) == {"loopback"}, seen


def test_the_connections_are_in_airflows_database(ui: Ui, api: httpx.Client) -> None:
    shown = api.get("/api/v2/connections/lance_default").json()
    assert (shown["conn_type"], f"http://{shown['host']}:{shown['port']}/ui") == ("lance", ui.lance)
    body = {"connection_id": "lance_default", "conn_type": "lance", "host": shown["host"], "port": shown["port"]}
    tested = api.post("/api/v2/connections/test", json=body).json()
    assert tested["status"] is True, tested


@pytest.fixture
def page(ui: Ui) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_page(viewport={"width": 1400, "height": 1400})
        shown.set_default_timeout(60_000)
        yield shown
        browser.close()


@in_a_browser
def test_the_connection_form_shows_our_fields(ui: Ui, page: Any) -> None:
    page.goto(f"{ui.airflow}/connections")
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


@in_a_browser
def test_the_trigger_form_rejects_accepts_and_leads_to_the_job(ui: Ui, api: httpx.Client, page: Any) -> None:

    def trigger(table: str) -> str:
        page.goto(f"{ui.airflow}/dags/lance_backfill")
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
    page.goto(f"{ui.airflow}/dags/lance_backfill/runs/{right}/tasks/backfill/details")
    link = page.locator("a[href*='/ui/jobs/']").filter(has_text="Lance job").first
    page.goto(link.get_attribute("href"))
    page.get_by_text("DONE", exact=True).first.wait_for()
    page.get_by_text("20,000 of 20,000").wait_for()

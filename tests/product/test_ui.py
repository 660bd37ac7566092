"""``make ui``: it starts again at the same addresses, for this machine only; and in a real browser."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx
import psutil
import pytest

from airflow_provider_lance.api.http.wire import Wire
from airflow_provider_lance.system.process_groups import find_processes
from scripts.local import free_port, remembered_port
from tests.airflow.standalone import eventually
from tests.listening import listening

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH: browser tests are left out")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel lists its sockets in /proc on Linux only")
pytestmark = pytest.mark.timeout(1500)


class Ui:
    """One ``make ui`` in a folder, until one Ctrl-C."""

    def __init__(self, folder: Path, rows: int = 20_000, variables: Mapping[str, str] | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        self.log = folder / "ui.log"
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                [sys.executable, ROOT / "scripts" / "ui.py"],
                env={
                    **environment,
                    "LANCE_UI_FOLDER": str(folder),
                    "ROWS": str(rows),
                    "PYTHONPATH": str(ROOT),
                    **(variables or {}),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.mark = f"AIRFLOW_LANCE_LOCAL={folder}:{self.child.pid}"
        self.ports_seen: dict[int, str] = {}
        self.spark_ports: set[int] = set()
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._watch_ports, daemon=True)

    def __enter__(self) -> Ui:
        if sys.platform == "linux":
            self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        started = set(find_processes(self.mark))
        assert started
        self.child.send_signal(signal.SIGINT)
        self.child.wait(60)
        left = list(find_processes(self.mark, started))
        assert not left, "one Ctrl-C stops every process"

    def wait_for(self, file: Path, words: str = "") -> str:
        """The text of a file, once it is there and has these words."""

        def has_words() -> bool:
            assert self.child.poll() is None, self.log.read_text()
            return file.exists() and words in file.read_text()

        eventually(has_words, 600, f"{words!r} in {file.name}")
        return file.read_text()

    def wait_for_addresses(self) -> tuple[str, str]:
        """The URLs of Airflow and of the job pages, once it has printed them."""
        airflow, lance = re.findall(r"http://\S+", self.wait_for(self.log, "Ctrl-C"))[:2]
        return airflow, lance

    def _watch_ports(self) -> None:
        while not self._ended.wait(0.3):
            found = {self.child.pid, *find_processes(self.mark)}
            # Airflow's processes write their titles over the environment where the mark would be.
            with contextlib.suppress(psutil.NoSuchProcess):
                found |= {each.pid for each in psutil.Process(self.child.pid).children(recursive=True)}
            self.ports_seen |= listening(found)
            self.spark_ports.update(listening(pid for pid in found if is_java(pid)))


def is_java(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).name() == "java")
    except psutil.NoSuchProcess:
        return False


class Addresses(NamedTuple):
    airflow: str
    lance: str
    ports_seen: dict[int, str]
    spark_ports: set[int]


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """The second start in one folder; the first was interrupted while Airflow started."""
    folder = tmp_path_factory.mktemp("ui")
    # Not the usual 2333 and 8080: tests run beside each other.
    ports = {"namespace": free_port(), "airflow": free_port()}
    (folder / "ports.json").write_text(json.dumps(ports))
    with Ui(folder, rows=0) as first:  # a sample job that is interrupted is taken over a minute later
        first.wait_for(folder / "api-server.log")
    with Ui(folder) as second:
        airflow, lance = second.wait_for_addresses()
        assert airflow == f"http://127.0.0.1:{ports['airflow']}", "the same address again"
        assert lance == f"http://127.0.0.1:{ports['namespace']}/ui", "the same address again"
        yield Addresses(airflow, lance, second.ports_seen, second.spark_ports)


@pytest.fixture(scope="module")
def api(ui: Addresses) -> Iterator[httpx.Client]:
    """Airflow's API, once it knows the DAG that these tests run."""
    with httpx.Client(base_url=ui.airflow, timeout=60) as client:
        client.headers["authorization"] = f"Bearer {client.get('/auth/token').json()['access_token']}"
        eventually(lambda: client.get("/api/v2/dags/lance_backfill").status_code == 200, 300, "the DAG to be parsed")
        yield client


def wait_for_end(api: httpx.Client, run: str) -> str:
    """The state of a run of ``lance_backfill`` once it has ended."""

    def state() -> str | None:
        found = str(api.get(f"/api/v2/dags/lance_backfill/dagRuns/{run}").json()["state"])
        return found if found in {"success", "failed"} else None

    return str(eventually(state, 400, f"the end of {run}"))


def test_ports_are_remembered_as_long_as_they_are_free(tmp_path: Path) -> None:
    preferred = free_port()
    assert remembered_port(tmp_path, "airflow", preferred) == preferred
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", preferred))
        taken.listen()
        other = remembered_port(tmp_path, "airflow", preferred)
    assert other != preferred
    assert remembered_port(tmp_path, "airflow", preferred) == other, "job links in old logs still work"


def test_the_connections_are_in_airflows_database(ui: Addresses, api: httpx.Client) -> None:
    shown = api.get("/api/v2/connections/lance_default").json()
    assert (shown["conn_type"], f"http://{shown['host']}:{shown['port']}/ui") == ("lance", ui.lance)
    body = {"connection_id": "lance_default", "conn_type": "lance", "host": shown["host"], "port": shown["port"]}
    tested = api.post("/api/v2/connections/test", json=body).json()
    assert tested["status"] is True, tested


@pytest.fixture
def page(ui: Addresses) -> Iterator[Page]:
    with browser_page() as shown:
        yield shown


@contextlib.contextmanager
def browser_page() -> Iterator[Page]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_page(viewport={"width": 1400, "height": 1400})
        shown.set_default_timeout(60_000)
        yield shown
        browser.close()


@in_a_browser
def test_the_connections_are_listed_under_admin(ui: Addresses, page: Page) -> None:
    page.goto(ui.airflow)
    page.get_by_role("button", name="Admin").click()
    page.get_by_role("menuitem", name="Connections").click()
    for name in ("lance_default", "spark_default"):
        page.get_by_text(name, exact=True).wait_for()


@in_a_browser
@pytest.mark.soak
def test_a_second_start_shows_what_the_first_one_had(tmp_path: Path) -> None:
    """Two whole starts, one after the other, each looked at in a browser."""
    (tmp_path / "ports.json").write_text(json.dumps({"namespace": free_port(), "airflow": free_port()}))
    dags = tmp_path / "my dags"
    dags.mkdir()
    shutil.copy(ROOT / "dags" / "lance_embed.py", dags)
    (tmp_path / "server.toml").write_text('[clusters.mine]\nmaster = "local[1]"\n')
    seen, options = [], {"DAGS": str(dags), "CONFIG": str(tmp_path / "server.toml")}
    for variables in ({}, options):
        with Ui(tmp_path, variables=variables) as started, browser_page() as page:
            addresses = started.wait_for_addresses()
            page.goto(f"{addresses[0]}/connections")
            page.get_by_text("lance_default", exact=True).wait_for()
            page.goto(addresses[1])
            page.get_by_text("good_reviews").first.wait_for()
            seen.append((*addresses, page.locator("tbody a[href*='/ui/jobs/']").count()))
            page.goto(f"{addresses[0]}/dags")
            page.get_by_text("lance_embed", exact=True).first.wait_for()
            assert page.get_by_text("lance_backfill", exact=True).count() == (0 if variables else 1)
    assert seen[0] == seen[1], "the same addresses and the same jobs"
    assert seen[0][2] == 3


@in_a_browser
def test_the_connection_form_shows_our_fields(ui: Addresses, page: Page) -> None:
    page.goto(f"{ui.airflow}/connections")
    page.get_by_role("button", name="Add Connection").click()
    kind = page.get_by_role("combobox").last
    kind.click()
    kind.fill("lance")
    page.keyboard.press("Enter")
    form = page.locator("[role=dialog]").filter(has_text="Connection Type")
    for label in ("Host or URL", "OAuth2 client id", "API key, token or secret"):
        form.get_by_text(label, exact=True).wait_for()
    form.get_by_role("button", name="Server", exact=True).click()
    form.get_by_text("Authentication", exact=True).wait_for()
    form.get_by_text("auto", exact=True).wait_for()
    assert form.get_by_text("null", exact=True).count() == 0
    form.get_by_role("button", name="Names and links", exact=True).click()
    form.get_by_text("Identifier delimiter", exact=True).wait_for()


@in_a_browser
def test_it_opens_with_finished_jobs_of_which_one_has_failed_rows(ui: Addresses, page: Page) -> None:
    page.goto(ui.lance)
    for words in ("reviews", "good_reviews"):
        page.get_by_text(words).first.wait_for()
    with Wire(ui.lance.removesuffix("/ui")) as wire:
        jobs = [wire.job(str(row["job_id"])) for row in wire.call("list_jobs", {}).value["jobs"]]
    failed = {int((job.result or {}).get("rows_failed") or 0) for job in jobs if job.table == "reviews"}
    assert failed == {0, 20}
    assert {job.state.value for job in jobs if job.table == "good_reviews"} == {"DONE"}


@in_a_browser
def test_the_trigger_form_rejects_accepts_and_leads_to_the_job(ui: Addresses, api: httpx.Client, page: Page) -> None:
    from playwright.sync_api import expect

    def trigger(table: str) -> str:
        page.goto(f"{ui.airflow}/dags/lance_backfill")
        page.get_by_role("button", name="Trigger").first.click()
        form = page.locator("[role=dialog]").filter(has_text="Run Parameters")
        field, button = form.locator("[name=element_table]"), form.get_by_role("button", name="Trigger")
        field.fill("")
        expect(button).to_be_disabled()  # a table is required
        field.fill(table)
        button.click()
        page.wait_for_url(re.compile(r"/runs/"))
        return page.url.rsplit("/runs/", 1)[1].split("?")[0]

    wrong, right = trigger("artikles"), trigger("articles")
    assert wait_for_end(api, wrong) == "failed"
    logs = api.get(f"/api/v2/dags/lance_backfill/dagRuns/{wrong}/taskInstances/check/logs/1").text
    assert "There is no table 'artikles'. Near names: articles" in logs.replace('\\"', '"')
    assert wait_for_end(api, right) == "success"
    page.goto(f"{ui.airflow}/dags/lance_backfill/runs/{right}/tasks/backfill/details")
    link = page.locator("a[href*='/ui/jobs/']").filter(has_text="Lance job").first
    page.goto(link.get_attribute("href") or "")
    page.get_by_text("DONE", exact=True).first.wait_for()
    page.get_by_text("20,000 of 20,000").wait_for()


@on_linux
def test_nothing_listens_beyond_this_machine_while_a_job_runs(ui: Addresses, api: httpx.Client) -> None:
    if not api.get("/api/v2/dags/lance_backfill/dagRuns", params={"state": "success"}).json()["total_entries"]:
        body = {"logical_date": None, "conf": {"table": "articles"}}  # no browser has started a run
        run = api.post("/api/v2/dags/lance_backfill/dagRuns", json=body).json()["dag_run_id"]
        assert wait_for_end(api, run) == "success"
    served = {httpx.URL(url).port for url in (ui.airflow, ui.lance)}
    assert served <= set(ui.ports_seen)
    assert ui.spark_ports, "Spark's driver was seen"
    assert set(ui.ports_seen.values()) == {"loopback"}, ui.ports_seen

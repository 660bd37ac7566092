"""The documentation as a site: it builds without a warning, needs no other server, and can be read on a phone."""

from __future__ import annotations

import functools
import http.server
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from airflow_provider_lance.api.job_states import TERMINAL_STATES, JobState
from scripts.docs_html import labelled

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH: browser tests are left out")


def build(folder: Path, **variables: str) -> Path:
    (folder / "airflow.py").write_text("raise ImportError('the reference is read from the sources')")
    # Not --quiet: with it mkdocs does not count warnings, and anything passes.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder / "site")]
    environment = {**os.environ, "PYTHONPATH": str(folder), **variables}
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly and without Airflow, for a repository with an address."""
    return build(tmp_path_factory.mktemp("site"), REPOSITORY_URL="https://git.example.org/lance/provider")


@pytest.fixture(scope="module")
def html(site: Path) -> dict[str, str]:
    """The pages by their address below the site."""
    return {str(page.relative_to(site)).removesuffix("index.html"): page.read_text() for page in site.rglob("*.html")}


def test_every_example_dag_is_shown(html: dict[str, str]) -> None:
    text = " ".join(unescape(re.sub(r"<[^>]+>", "", page)) for page in html.values())
    assert "--8" not in text, "an example that was not included"
    for example in sorted((ROOT / "dags").glob("*.py")):
        assert f'"{example.stem}"' in text, example.name


def test_the_pages_need_no_other_server(site: Path, html: dict[str, str]) -> None:
    for name, page in html.items():
        loaded = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"([^\"]+)\"", page)
        loaded += re.findall(r"<link\b[^>]*\brel=\"(?:stylesheet|icon|preload)\"[^>]*\bhref=\"([^\"]+)\"", page)
        assert loaded
        assert not [address for address in loaded if "://" in address or address.startswith("//")], name
        assert 'class="mermaid"' not in page, "Material would fetch the program that draws it"
    for sheet in site.rglob("*.css"):
        assert "@import" not in sheet.read_text()


def test_the_header_leads_to_the_repository_where_its_address_is_known(html: dict[str, str]) -> None:
    assert 'href="https://git.example.org/lance/provider"' in html[""]
    assert "https://git.example.org/lance/provider/blob/main/CONTRIBUTING.md" in html["architecture/"]


def test_the_pages_have_a_logo_and_are_light_or_dark(html: dict[str, str]) -> None:
    assert re.search(r'<img src="images/logo.svg" alt="logo">', html[""])
    assert set(re.findall(r'data-md-color-scheme="(\w+)"', html[""])) == {"default", "slate"}


def test_diagrams_are_part_of_their_page(html: dict[str, str]) -> None:
    assert html["architecture/"].count('<svg xmlns="http://www.w3.org/2000/svg" id=') == 2


def test_the_diagram_of_a_jobs_life_has_every_state() -> None:
    diagram = (ROOT / "docs" / "diagrams" / "job-states.svg").read_text()
    arrows = re.findall(r'data-from="(\w+)" data-to="(\w+)"', diagram)
    shown = set(re.findall(r'class="name"[^>]*>(\w+)<', diagram))
    assert shown == {state.value for state in JobState}
    assert {end for _, end in arrows} == shown
    assert {start for start, _ in arrows} == {"start"} | (shown - set(TERMINAL_STATES)), "a job that ended stays so"


def test_every_link_leads_to_a_page_and_a_place_on_it(site: Path, html: dict[str, str]) -> None:
    broken, checked = [], 0
    for name, page in html.items():
        for target in re.findall(r'<a\b[^>]*\bhref="([^"]+)"', page):
            address, _, anchor = unescape(target).partition("#")
            if "://" in address or address.startswith(("mailto:", "/")):
                continue
            path = posixpath.normpath(posixpath.join("/", posixpath.dirname(name), address))[1:]
            file = (site / path / "index.html") if (site / path).is_dir() else site / path
            checked += 1
            text = page if not address else file.read_text() if file.is_file() else ""
            if not text or (anchor and f'id="{unquote(anchor)}"' not in text):
                broken.append(f"{name}: {target}")
    assert checked > 1000
    assert not broken, "\n".join(broken)


def test_guides_and_reference_lead_to_each_other(html: dict[str, str]) -> None:
    for kind in ("operators", "sensors", "triggers"):
        reference = html[f"reference/{kind}/"]
        names = re.findall(rf'id="(airflow_provider_lance\.{kind}\.\w+\.Lance\w+)"', reference)
        listed = [name for name in names if not name.endswith(("LanceJobOperator", "LanceBaseSensor"))]  # base classes
        assert len(listed) > 2
        for name in listed:
            leading = [page for page, text in html.items() if f'href="../../reference/{kind}/#{name}"' in text]
            own = [page for page in leading if page.startswith(f"{kind}/")]
            assert own, f"no page leads to {name}"
            assert any(f'href="../../{page}"' in reference for page in own), f"{name} does not lead to its page"


def test_the_search_has_every_page_and_no_source_of_a_dag(site: Path, html: dict[str, str]) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert {entry["location"] for entry in entries} >= html.keys() - {"404.html"}
    text = unescape(" ".join(entry["text"] for entry in entries))
    assert "rows_remaining" in text, "words of tables are found"
    assert not re.findall(r"with DAG\(|default_args=|from airflow\.sdk import", text)


def test_a_wide_table_has_its_headings_at_each_cell() -> None:
    head, row = "<tr><th>a &amp; b</th><th>c</th><th>d</th></tr>", '<tr><td>1</td><td class="x">2</td><td>3</td></tr>'
    assert labelled(f"<table>{head}{row}</table>") == (
        f'<table class="stacks">{head}<tr><td data-label="a &amp; b">1</td>'
        '<td data-label="c" class="x">2</td><td data-label="d">3</td></tr></table>'
    )
    narrow = "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>"
    assert labelled(narrow) == narrow


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def page(address: str) -> Iterator[Page]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_page()
        shown.set_default_timeout(60_000)
        yield shown
        browser.close()


WIDER = """
() => [...document.querySelectorAll('article h1, article p, article li, article td, article th, article svg')].filter(
    each => each.getClientRects().length && each.getBoundingClientRect().right > document.documentElement.clientWidth
).map(each => each.textContent.slice(0, 60))
"""


@in_a_browser
def test_nothing_but_code_is_wider_than_a_phone_or_a_laptop(address: str, page: Page, html: dict[str, str]) -> None:
    tables = [name for name in html if 'class="stacks"' in html[name] or 'class="parameters"' in html[name]]
    assert len(tables) > 30
    for name in ["", *tables]:
        page.goto(f"{address}/{name}")
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(WIDER) == [], f"{name} at {width} pixels"
            assert page.evaluate("document.documentElement.scrollWidth") == width, f"{name} at {width} pixels"


@in_a_browser
def test_the_meaning_of_a_parameter_has_the_width_of_the_page(address: str, page: Page) -> None:
    page.goto(f"{address}/operators/backfill_column/")
    for width, least in ((390, 300), (1280, 600)):
        page.set_viewport_size({"width": width, "height": 900})
        meaning = page.locator("table.parameters td[data-label=meaning]").first.bounding_box()
        assert meaning is not None
        assert meaning["width"] > least


@in_a_browser
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("LanceBackfillColumnOperator", "/operators/backfill_column/"),
        ("loading data", "/loading/"),
        ("materialized view", "/views/"),
    ],
)
def test_the_search_leads_to_the_page(address: str, page: Page, words: str, found: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{address}/install/")
    page.get_by_placeholder("Search").fill(words)
    page.locator(".md-search-result__link").first.wait_for()
    links = [str(link.get_attribute("href")) for link in page.locator(".md-search-result__link").all()[:3]]
    assert any(found in link for link in links), links

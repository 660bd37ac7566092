"""Every guide is followed as it is printed: its DAGs run on real Airflow and Spark, its commands print what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_lance.api.client import LanceClient
from airflow_provider_lance.api.settings import Settings
from airflow_provider_lance.cli.main import main
from scripts.samples import create_tables
from tests.airflow.conftest import RunDag, connection
from tests.airflow.guide import DOCS, GUIDES, ROOT, blocks, missing_lines
from tests.airflow.real_server import KEY, RealServer, serve

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with serve(tmp_path_factory.mktemp("guides")) as server:
        yield server


class Reader:
    """A person who follows a page: saves DAGs into a folder and types commands."""

    def __init__(self, folder: Path, run_dag: RunDag, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self.run_dag, self.capture = folder, run_dag, capture

    def save(self, code: str, dag_id: str | None) -> None:
        if dag_id is None:
            exec(compile(code, "page", "exec"), {"__name__": "page"})
        else:
            (self.folder / f"{dag_id}.py").write_text(code)

    def type(self, command: str) -> str:
        """The output of a command."""
        self.capture.readouterr()
        words = shlex.split(command.removesuffix("|| true"))
        if words[:3] == ["airflow", "dags", "test"]:
            assert self.test_dag(*words[3:]) == (not command.endswith("|| true")), command
        elif words[0] == "airflow-lance":
            assert main(words[1:]) == 0, command
        else:
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            subprocess.run(["bash", "-e", "-c", command], env={**os.environ, "PATH": path}, check=True)
        return "".join(self.capture.readouterr())

    def test_dag(self, dag_id: str, *arguments: str) -> bool:
        """Whether the run succeeded."""
        import pendulum
        from airflow.dag_processing.dagbag import DagBag

        bag = DagBag(str(self.folder / f"{dag_id}.py"))
        assert not bag.import_errors, bag.import_errors
        options = {}
        if arguments and arguments[0] == "--conf":
            options["run_conf"] = json.loads(arguments[1])
        elif arguments:
            options["logical_date"] = pendulum.parse(arguments[0])
        return self.run_dag(bag.dags[dag_id], **options).state == "success"


@pytest.fixture
def reader(
    server: RealServer,
    run_dag: RunDag,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Reader]:
    """A person with a server and a connection to it."""
    monkeypatch.setenv("LANCE_URL", server.url)
    monkeypatch.setenv("LANCE_API_KEY", KEY)
    with connection("lance_default", server.connection):
        yield Reader(tmp_path, run_dag, capfd)


@pytest.mark.parametrize("page", GUIDES, ids=[page.stem for page in GUIDES])
def test_a_guide_works_as_printed(page: Path, reader: Reader) -> None:
    output = ""
    for block in blocks(page):
        if block.kind == "python":
            reader.save(block.text, block.dag_id)
        elif block.kind == "bash":
            output = "".join(reader.type(command) for command in block.text.strip().splitlines())
        else:
            assert missing_lines(block.text, output) == [], output[-6000:]


@pytest.mark.parametrize(
    ("page", "dag_id", "column"),
    [
        (ROOT / "README.md", "nightly_features", "embedding"),
        pytest.param(DOCS / "index.md", "count_words", "words", marks=pytest.mark.soak),
    ],
    ids=["readme", "front page"],
)
def test_the_dag_of_the_first_page_runs_as_printed(
    page: Path, dag_id: str, column: str, reader: Reader, server: RealServer
) -> None:
    with LanceClient(Settings.from_connection(host=server.url, password=KEY)) as client:
        create_tables(client, 1000)  # those of make ui
    [block] = [block for block in blocks(page) if block.kind == "python"]
    assert block.dag_id == dag_id
    reader.save(block.text, dag_id)
    assert f"articles.{column}: 1,000 rows computed" in reader.type(f"airflow dags test {dag_id}")
    count = reader.type(f'airflow-lance query articles --where "{column} IS NOT NULL" --count')
    assert count.strip() == "1000"


def test_the_first_dag_prints_what_the_page_says(reader: Reader) -> None:
    page = DOCS / "start.md"
    [block] = [block for block in blocks(page) if block.kind == "python"]
    reader.save(block.text, block.dag_id)
    [printed] = re.findall(r"The last task prints `(.*?)`", page.read_text())
    assert printed in reader.type(f"airflow dags test {block.dag_id}")

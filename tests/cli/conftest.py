"""A folder of tables of every kind, and a real server for the same folder; commands run against both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.cli.main import main
from airflow_provider_lance.definitions.column_rules import virtual_column_entry
from airflow_provider_lance.definitions.functions.envelope import wrap
from airflow_provider_lance.namespace import SparkNamespace
from tests.namespace.conftest import QUICK
from tests.namespace.people import stream
from tests.namespace.server_process import ServerProcess

TITLES = ["Lance in ten minutes", "Größe zählt", "数据湖", "A view that follows", "Short"]
#: How the fake driver ends a backfill, by the column.
ENDS = {"broken": "FAILED", "endless": "hang"}


class Answer(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self) -> object:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Answer]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``airflow-lance`` in this process."""
    for name in ("LANCE_URL", "LANCE_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def command(*arguments: str) -> Answer:
        capfd.readouterr()
        try:
            status = main(arguments)
        except SystemExit as end:  # argparse ends the process
            status = int(str(end.code))
        return Answer(status, *capfd.readouterr())

    return command


def articles() -> pa.Table:
    vectors = pa.array([number / 10 for number in range(20)], pa.float32())
    return pa.table(
        {
            "id": pa.array([1, 2, 3, 4, 5], pa.int64()),
            "title": TITLES,
            "lang": ["en", "de", "zh", "en", None],
            "author": pa.array(
                [{"name": "Ada", "mails": ["ada@example.org"]}, None, *[{"name": "Lin", "mails": []}] * 3]
            ),
            "embedding": pa.FixedSizeListArray.from_arrays(vectors, 4),
        }
    )


def make_lake(root: Path) -> None:
    """The tables that all tests look at, and that the page of commands shows."""
    namespace = SparkNamespace(root=str(root))

    def call(operation: str, table_id: list[str], *data: bytes, **fields: object) -> None:
        getattr(namespace, operation)({"id": table_id, **fields}, *data)

    call("create_table", ["articles"], stream(articles()))
    call("create_table_tag", ["articles"], tag="production", version=1)
    for name in ("length", *ENDS):
        call("alter_table_add_columns", ["articles"], new_columns=[{"name": name, "computed": "length(title)"}])
    entry = virtual_column_entry(
        wrap("texts:summarize"), inputs=["title"], outputs={"summary": pa.string()}, name="sum"
    )
    call("alter_table_add_columns", ["articles"], new_columns=[{"name": "summary", "virtual_column": entry}])
    call("create_table_scalar_index", ["articles"], column="id", index_type="BTREE")
    query = "SELECT id, title FROM articles WHERE length(title) > 10"
    call("create_materialized_view", ["long_titles"], query=query, with_no_data=True)
    call("create_table", ["empty"], stream(articles().slice(0, 0)))
    call("create_namespace", ["sales"])
    call("create_table", ["sales", "orders"], stream(pa.table({"id": [1], "größe in cm": [1.5]})))
    call("declare_table", ["planned"])


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the fake driver, whose folder is the lake."""
    found = ServerProcess(
        tmp_path_factory.mktemp("cli"), timings=QUICK, driver_env={"FAKE_DRIVER_ENDS": json.dumps(ENDS)}
    )
    make_lake(found.directory / "lake")
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="session")
def lake(server: ServerProcess) -> Path:
    return server.directory / "lake"


@pytest.fixture(params=["server", "folder"])
def where(request: pytest.FixtureRequest, server: ServerProcess, lake: Path) -> list[str]:
    """The options that name the namespace: the server, and the same tables as a folder."""
    return ["--url", server.url] if request.param == "server" else ["--root", str(lake)]


@pytest.fixture(scope="session")
def kinds(lake: Path) -> pa.Table:
    """The table ``kinds`` with values of many types, some of them hard to show; returns what was written."""
    import datetime
    import decimal

    table = pa.table(
        {
            "text": ["a\nb", "x" * 200, ""],
            "number": pa.array([0.1, float("nan"), None], pa.float64()),
            "flag": [True, False, None],
            "bytes": [b"\x00\x01", b"", None],
            "moment": pa.array([5, None, 1_700_000_000_000_000_001], pa.timestamp("ns", "UTC")),
            "day": pa.array([datetime.date(2026, 1, 2), None, datetime.date(1, 1, 1)]),
            "span": pa.array([3, None, 0], pa.duration("s")),
            "price": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-0.01")], pa.decimal128(10, 2)),
            "word": pa.array(["x", None, "y"]).dictionary_encode(),
            "deep": pa.array([[{"a": [1, 2, 3, 4]}], [], None], pa.list_(pa.struct([("a", pa.list_(pa.int64()))]))),
            "a b": [1, 2, 3],
        }
    )
    lance.write_dataset(table, str(lake / "kinds.lance"), enable_stable_row_ids=True)
    blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("id", pa.int64())]).append(blob)
    blobs = pa.table([pa.array([1, 2]), pa.array([b"x" * 100, None], pa.large_binary())], schema=schema)
    lance.write_dataset(blobs, str(lake / "blobs.lance"), data_storage_version="2.1")
    return table

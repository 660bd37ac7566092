"""Functions and secrets of LanceDB's own client on our server, run by real Spark."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from typing import Any

import httpx
import lancedb
import pyarrow as pa
import pytest
from cryptography.fernet import Fernet
from lancedb.expr import col
from lancedb.functions import udf
from lancedb.secrets import EnvVarSecret

from tests.interop.conftest import Address, running_server

SECRET, OTHER = "tr0ub4dor-and-3-staples", "correct-horse-battery"
ROWS = pa.table({"id": range(20), "text": [f"word {n}" for n in range(20)]})
LIMIT = 13
RESULT_TYPES: dict[str, pa.DataType] = {"shout": pa.string(), "size": pa.int64()}
RESULTS = pa.schema(RESULT_TYPES)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    key = {"LANCE_SECRETS_KEY": Fernet.generate_key().decode()}
    with running_server(tmp_path_factory.mktemp("server"), key) as address:
        yield address


@pytest.fixture(scope="module")
def database(server: Address) -> Any:
    return lancedb.connect("db://dev", api_key=server.key, host_override=server.url)


@udf
def half(value: int) -> float:
    if value == LIMIT:
        raise ValueError(f"{value} is unlucky")
    return value / 2


@udf(
    input_schema=pa.schema([pa.field("text", pa.string())]),
    output_schema=RESULTS,
)
def parts(text: str) -> dict:  # type: ignore[type-arg]
    return {"shout": text.upper(), "size": len(text)}


@udf
class Scaled:
    def __init__(self, factor: int, offset: int = 0):
        self.factor, self.offset = factor, offset

    def __call__(self, value: int) -> int:
        return value * self.factor + self.offset


@udf(
    input_schema=pa.schema([pa.field("text", pa.string())]),
    output_schema=pa.field("n", pa.int64(), nullable=False),
    pip=["pyarrow"],
    env={"MODE": "quick"},
)
def lengths(text: pa.Array) -> pa.Array:  # type: ignore[type-arg]
    import pyarrow

    assert os.environ["MODE"] == "quick"
    return pyarrow.array([len(value.as_py()) for value in text], pyarrow.int64())


def values(table: Any, *columns: str) -> list[Any]:
    rows = table.search().select(["id", *columns]).to_arrow().sort_by("id")
    return [tuple(row[name] for name in columns) for row in rows.to_pylist()]


@pytest.mark.timeout(900)
def test_columns_are_filled_by_functions(database: Any) -> None:
    table = database.create_table("rows", ROWS)
    registered = database.create_function(half)
    assert (registered.name, registered.version) == ("half", "1")
    assert database.create_function(half).version == "1", "the same source is the same version"
    table.add_columns({"half": registered(value=col("id"))})
    table.add_columns(database.create_function(parts)(text=col("text")).rename(columns={"shout": "loud"}))
    table.add_columns({"scaled": database.create_function(Scaled)(value=col("id"), factor=3)})
    table.add_columns({"n": database.create_function(lengths)(text=col("text"))})
    assert table.schema.names == ["id", "text", "half", "loud", "size", "scaled", "n"]

    job, *others = [table.refresh_column_async(name) for name in ("half", "loud", "scaled", "n")]
    result = job.wait()
    assert (result.rows_assigned, result.rows_failed, result.rows_remaining) == (19, 1, 1)
    for other in others:
        assert other.wait().rows_assigned == 20
    assert values(table, "half") == [(None if n == LIMIT else n / 2,) for n in range(20)]
    assert values(table, "loud", "size") == [(f"WORD {n}", len(f"word {n}")) for n in range(20)]
    assert values(table, "scaled", "n") == [(3 * n, len(f"word {n}")) for n in range(20)]

    (record,) = table.function_errors(column="half").records
    assert (record.column, record.function, record.function_version) == ("half", "half", "1")
    assert (record.error_type, record.error_message) == ("ValueError", "13 is unlucky")
    assert (record.job_id, record.row_offset) == (job.id, LIMIT)
    assert table.function_errors(column="n").records == []

    assert {"Scaled", "half", "lengths", "parts"} <= {function.name for function in database.list_functions()}
    assert database.drop_function("half", version="1")
    with pytest.raises(Exception, match="no function half of version 1"):
        database.get_function("half", version="1")


@udf
def watched(value: int) -> str:
    """What the function sees of its secret, and how many processes show it to others."""
    token = os.environ["API_TOKEN"]
    if value == 1:
        raise ValueError(f"401 for the token {token}")
    shown = 0
    for process in filter(str.isdigit, os.listdir("/proc")):
        for name in ("cmdline", "environ"):
            try:
                with open(f"/proc/{process}/{name}", "rb") as file:
                    shown += token.encode() in file.read()
            except OSError:
                continue
    return f"{token[:5]} {len(token)} {shown}"


@udf
def without(value: int) -> str:
    return os.environ.get("API_TOKEN", "absent")


@pytest.mark.timeout(900)
def test_a_secret_reaches_the_workers_of_its_job_and_nobody_else(database: Any, server: Address) -> None:
    database.create_secret("token", OTHER)
    database.alter_secret("token", SECRET)
    assert database.list_secrets() == ["token"]
    assert database.describe_secret("token").name == "token"
    with pytest.raises(Exception, match=r"409.*already"):
        database.create_secret("token", OTHER)
    table = database.create_table("guarded", ROWS.slice(0, 3))
    bound = database.create_function(watched, secrets=[EnvVarSecret("token", "API_TOKEN")])
    table.add_columns({"seen": bound(value=col("id"))})
    table.add_columns({"other": database.create_function(without)(value=col("id"))})
    jobs = [table.refresh_column_async(name) for name in ("seen", "other")]
    assert [job.wait().rows_failed for job in jobs] == [1, 0]
    assert values(table, "seen", "other") == [
        (f"{SECRET[:5]} {len(SECRET)} 0", "absent"),
        (None, "absent"),
        (f"{SECRET[:5]} {len(SECRET)} 0", "absent"),
    ]
    (record,) = table.function_errors(column="seen").records
    assert record.error_message == "401 for the token ***"

    # Logs of server and drivers, the registry, the tables and all files of the jobs.
    for path in server.lake.parent.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert SECRET.encode() not in content, path
            assert OTHER.encode() not in content, path
    headers = {"x-api-key": server.key}
    for route in ("jobs/describe", "jobs/query_events"):
        answer = httpx.post(f"{server.url}/v1/{route}", json={"job_id": jobs[0].id}, headers=headers)
        assert answer.status_code == 200
        assert SECRET.encode() not in answer.content

    # Whoever may claim an external job would read the values.
    external = {"column": "seen", "cluster": "external"}
    answer = httpx.post(f"{server.url}/v1/table/guarded/backfill_column", json=external, headers=headers)
    assert (answer.status_code, "that this server starts" in answer.text) == (400, True)
    database.drop_secret("token")
    with pytest.raises(Exception, match="needs the secret token, which does not exist"):
        table.refresh_column_async("seen")
    with pytest.raises(Exception, match=r"404.*no secret token"):
        database.describe_secret("token")


@udf(pip=["no-such-package>=2"])
def needy(value: int) -> int:
    return value


@pytest.mark.timeout(900)
def test_a_missing_package_fails_the_job_before_any_row(database: Any) -> None:
    table = database.create_table("needs", ROWS)
    table.add_columns({"x": database.create_function(needy)(value=col("id"))})
    before = table.version
    with pytest.raises(Exception, match=r"no-such-package>=2 is not installed.*\(in load\)"):
        table.refresh_column_async("x").wait()
    assert table.version == before


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"digest": "sha256:" + "0" * 64}, "the artifact was altered"),
        ({"entrypoint": "other"}, "defines no function or class 'other'"),
        ({"kind": "wheel"}, "python_callable and python_bundle"),
        ({"content": {"encoding": "base64", "data": "?"}}, "not base64"),
    ],
)
def test_what_cannot_be_a_function_is_refused(server: Address, change: dict[str, object], sentence: str) -> None:
    source = b"def f(value):\n    return value\n"
    artifact = {
        "kind": "python_callable",
        "digest": f"sha256:{hashlib.sha256(source).hexdigest()}",
        "entrypoint": "f",
        "content": {"encoding": "base64", "data": base64.b64encode(source).decode()},
    }
    body = {
        "artifact": artifact | change,
        "signature": {
            "inputs": [{"name": "value", "arrow_type": "int64"}],
            "output": {"kind": "scalar", "arrow_type": "int64"},
        },
        "runtime": {"kind": "python", "python_version": "3.11"},
    }
    headers = {"x-api-key": server.key}
    answer = httpx.post(f"{server.url}/v1/function/f/create", json=body, headers=headers)
    assert answer.status_code == 400, answer.text
    assert sentence in answer.text
    assert httpx.post(f"{server.url}/v1/function/f/describe", json={}, headers=headers).status_code == 404

"""Bodies and heads that cost a server more than they cost their sender: all are refused before they cost anything."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_lance.api.operations import Operation
from airflow_provider_lance.namespace.jobs.database import Database, sqlite_url
from airflow_provider_lance.namespace.jobs.service import JobsService
from airflow_provider_lance.namespace.server import app as server_module
from airflow_provider_lance.namespace.server.arrow_bodies import check_arrow_body
from airflow_provider_lance.namespace.server.error_bodies import HttpProblem
from airflow_provider_lance.namespace.server.keys import Keys
from airflow_provider_lance.namespace.server.read_request import read_fields
from tests.namespace.conftest import QUICK
from tests.namespace.server_process import ServerProcess

Codec = Literal["zstd", "lz4"]
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
LIMITS = {"max_arrow_bytes": 1 << 20, "max_arrow_rows": 10_000, "head_seconds": 1}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("hostile"), timings=QUICK, limits=LIMITS).start()
    yield server
    server.stop()


def compressed(table: pa.Table, codec: Codec | None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


ZEROS = pa.table({"x": np.zeros(1 << 18, "int64")})
NULLS = pa.table({"x": pa.nulls(2**31 - 1)})
HIDDEN_NULLS = pa.table({"x": pa.ListArray.from_arrays(pa.array([0, 2**31 - 2], pa.int32()), pa.nulls(2**31 - 2))})


class TestArrow:
    @pytest.mark.parametrize("codec", ["zstd", "lz4"])
    def test_buffers_that_decode_to_more_than_allowed(self, server: ServerProcess, codec: Codec) -> None:
        body = compressed(ZEROS, codec)
        assert len(body) < 20_000
        answer = httpx.post(f"{server.url}/v1/table/zeros/create", content=body, headers=ARROW, timeout=30)
        assert answer.status_code == 413, answer.text
        assert "max_arrow_bytes" in answer.json()["error"]
        assert server.post("/v1/table/zeros/describe").status_code == 404

    @pytest.mark.parametrize("table", [NULLS, HIDDEN_NULLS], ids=["rows", "values of one row"])
    def test_nulls_that_take_no_bytes(self, server: ServerProcess, table: pa.Table) -> None:
        body = compressed(table, None)
        assert len(body) < 400
        answer = httpx.post(f"{server.url}/v1/table/nulls/create", content=body, headers=ARROW, timeout=30)
        assert answer.status_code == 413, answer.text
        assert "max_arrow_rows" in answer.json()["error"]

    @pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
    def test_what_fits_exactly_is_taken(self, codec: Codec | None) -> None:
        rows = 30
        table = pa.table(
            {
                "text": ["a", None, "b"] * 10,
                "flag": [True] * rows,
                "word": pa.array(["q", "r", "q"] * 10).dictionary_encode(),
                "vector": [[1.0] * 3] * rows,
                "point": [{"x": 1}] * rows,
                "nothing": pa.nulls(rows),
            }
        )
        body = compressed(table, codec)
        check_arrow_body(body, 1 << 20, rows)
        with pytest.raises(HttpProblem, match="rows"):
            check_arrow_body(body, 1 << 20, rows - 1)
        with pytest.raises(HttpProblem, match="bytes"):
            check_arrow_body(body, 100, rows)


class TestJson:
    def test_strangers_send_little(self, server: ServerProcess) -> None:
        body = b'{"x": [' + b",".join([b"[]"] * 1_300_000) + b"]}"
        answer = httpx.post(f"{server.url}/v1/jobs/report", content=body, timeout=30)
        assert answer.status_code == 413, answer.text
        assert "262144" in answer.json()["error"]

    def test_a_body_of_many_lists_is_refused_unread(self, server: ServerProcess) -> None:
        body = b'{"x": [' + b",".join([b"[]"] * 1_300_000) + b"]}"
        answer = httpx.post(f"{server.url}/v1/table/nothing/describe", content=body, timeout=30)
        assert answer.status_code == 400, answer.text
        assert "100000 lists" in answer.json()["error"]

    def test_a_large_body_is_not_read_by_the_event_loop(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        readers: list[str] = []

        def noted(*arguments: Any) -> dict[str, Any]:
            readers.append(threading.current_thread().name)
            return read_fields(*arguments)

        monkeypatch.setattr(server_module, "read_fields", noted)
        database = Database(sqlite_url(tmp_path / "jobs.sqlite"))
        jobs = JobsService(database, directory=tmp_path / "state", namespace_url="http://127.0.0.1:1")
        app = server_module.create_app(NoTables(), jobs, Keys(database))

        async def ask() -> None:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                await http.post("/v1/jobs/list", content=b"{}")
                await http.post("/v1/jobs/list", json={"x": [[]] * 50_000})

        asyncio.run(ask())
        database.close()
        small, large = readers
        assert small == threading.current_thread().name
        assert large.startswith("lance-request")

    def test_a_vector_of_ordinary_length_is_read(self, server: ServerProcess) -> None:
        body = {"vector": [0.25] * 4096, "k": 1}
        assert server.post("/v1/table/nothing/query", body).status_code == 404


class NoTables:
    """A namespace that answers nothing."""

    def run(self, operation: Operation, request: object = None, request_data: object = None) -> object:
        return {}


def connect(server: ServerProcess) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), timeout=20)


def read_all(connection: socket.socket) -> bytes:
    content = b""
    try:
        while part := connection.recv(65536):
            content += part
    except ConnectionResetError:
        pass
    return content


class TestHeads:
    def test_a_huge_header_is_refused(self, server: ServerProcess) -> None:
        with connect(server) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-large: ")
            sent = 0
            try:
                while sent < 8 << 20:
                    connection.sendall(b"a" * 65536)
                    sent += 65536
            except OSError:
                pass
            assert sent < 8 << 20

    def test_a_header_beyond_the_limit_is_told_so(self, server: ServerProcess) -> None:
        with connect(server) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-large: " + b"a" * 70_000)
            answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 431 "), answer[:200]
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == 13

    def test_many_headers_are_refused(self, server: ServerProcess) -> None:
        headers = {f"x-lance-ctx-{number}": "1" for number in range(300)}
        assert server.post("/v1/table/nothing/describe", headers=headers).status_code == 431

    def test_half_sent_heads_do_not_stay(self, server: ServerProcess) -> None:
        connections = [connect(server) for _ in range(100)]
        try:
            for number, connection in enumerate(connections):
                if number % 2:
                    connection.sendall(b"POST /v1/table/x/describe HTTP/1.1\r\nhost: loc")
            assert server.post("/v1/table/nothing/describe").status_code == 404
            for connection in connections:
                assert read_all(connection).startswith(b"HTTP/1.1 408 ")
        finally:
            for connection in connections:
                connection.close()

    def test_a_dripped_head_does_not_stay(self, server: ServerProcess) -> None:
        with connect(server) as connection:
            ended = threading.Event()

            def drip() -> None:
                try:
                    connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n")
                    while not ended.wait(0.1):
                        connection.sendall(b"a: b\r\n")
                except OSError:
                    pass

            thread = threading.Thread(target=drip)
            thread.start()
            began = time.monotonic()
            answer = read_all(connection)
            ended.set()
            thread.join()
        # The bytes that still arrive after the answer may reset the connection and so discard it.
        assert not answer or answer.startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began < 15

    def test_kept_connections_and_slow_answers_are_not_cut(self, server: ServerProcess) -> None:
        """Idle between two requests for longer than a head may take."""
        with httpx.Client(timeout=30) as client:
            addresses = set()
            for pause in (1.5, 1.5, 0):
                answer = client.get(f"{server.url}/healthz")
                assert answer.status_code == 200
                addresses.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
                time.sleep(pause)
            assert len(addresses) == 1, "the client did not have to connect again"

"""Two hundred clients at once, submitting and describing: no error, no lost job."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import pyarrow as pa

from airflow_provider_lance.api.client import LanceClient
from tests.namespace.conftest import QUICK
from tests.namespace.server_process import ServerProcess

CLIENTS = 200


def test_two_hundred_clients_at_once(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "server", timings=QUICK).start()
    with LanceClient(server.url) as client:
        client.create_table({"id": ["t"]}, pa.table({"text": ["a"]}))
        added = [{"name": f"c{number}", "computed": f"length(text) + {number}"} for number in range(CLIENTS)]
        client.alter_table_add_columns({"id": ["t"], "new_columns": added})
    gate = threading.Barrier(CLIENTS)
    jobs: dict[int, str] = {}
    wrong: list[str] = []

    def one(number: int) -> None:
        with httpx.Client(base_url=server.url, timeout=120, verify=False) as http:  # no TLS: no CA store to load
            gate.wait()
            answer = http.post("/v1/table/t/backfill_column", json={"column": f"c{number}", "cluster": "external"})
            if answer.status_code != 202:
                wrong.append(answer.text)
                return
            jobs[number] = answer.json()["job_id"]
            for _ in range(3):
                answer = http.post("/v1/jobs/describe", json={"job_id": jobs[number]})
                if answer.status_code != 200 or answer.json()["spec"]["column"] != f"c{number}":
                    wrong.append(answer.text)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(CLIENTS)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert len(set(jobs.values())) == CLIENTS
        listed = server.post("/v1/jobs/list", {"job_ids": list(jobs.values())}).json()
        assert {row["job_id"] for row in listed["jobs"]} == set(jobs.values())
    finally:
        server.stop()

"""Spark sessions: a driver on one machine is reachable from that machine only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_lance.engine.spark.session import loopback_environment

ROOT = Path(__file__).parents[3]
DRIVER = """
import json, os
from airflow_provider_lance.engine.spark.session import make_session
from tests.listening import listening

spark = make_session("loopback", master="local[1]")
jvm = spark.sparkContext._gateway.proc.pid
children = [int(pid) for pid in open(f"/proc/{jvm}/task/{jvm}/children").read().split()]
print(json.dumps([spark.sparkContext.uiWebUrl, listening([jvm, *children]), os.environ.get("SPARK_LOCAL_IP")]))
spark.stop()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's table of sockets is in /proc on Linux only")
def test_a_local_driver_and_its_ui_listen_on_loopback() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    command = [sys.executable, "-c", DRIVER]
    answer = subprocess.run(
        command, cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    url, ports, left = json.loads(answer.stdout.splitlines()[-1])
    assert url.rpartition(":")[2] in ports, "the UI is among them"
    assert set(ports.values()) == {"loopback"}
    assert left is None, "a later session of this process may be one on a cluster"


def test_clusters_and_a_deployments_own_address_are_left_alone() -> None:
    assert loopback_environment("local[*,4]", {}) == {"SPARK_LOCAL_IP": "127.0.0.1"}
    assert loopback_environment("local[*]", {"SPARK_LOCAL_IP": "10.0.0.7"}) == {}
    for master in ("spark://host:7077", "yarn", "k8s://https://host:6443"):
        assert loopback_environment(master, {}) == {}

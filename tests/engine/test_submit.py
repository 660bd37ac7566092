"""The spark-submit command line, the JVM's flags and archive, and the sizes of durable parts."""

from __future__ import annotations

import os
import subprocess
import sys

from airflow_provider_lance.engine.checkpoint import Part, disjoint, gaps
from airflow_provider_lance.engine.fill import FlushPolicy
from airflow_provider_lance.engine.functions import Pace
from airflow_provider_lance.engine.submit import APPLICATION, submit_command, submit_environment


def test_the_command_names_the_packaged_application_and_no_secret(monkeypatch, tmp_path):
    monkeypatch.setenv("LANCE_ENGINE_CACHE", str(tmp_path))
    monkeypatch.setenv("LANCE_JOB_TOKEN", "secret-token")
    command = submit_command(
        ["--job-id", "j", "--namespace", "http://n"],
        master="k8s://https://host",
        deploy_mode="cluster",
        conf={"spark.executor.memory": "2g", "spark.python.unix.domain.socket.enabled": "false"},
        image="registry/image:1",
        py_files=["a.zip", "b.py"],
    )
    assert command[-5:] == [APPLICATION, "--job-id", "j", "--namespace", "http://n"]
    text = " ".join(command)
    assert "secret-token" not in text
    assert "spark.kubernetes.container.image=registry/image:1" in text
    assert "--py-files a.zip,b.py" in text
    assert text.count("spark.python.unix.domain.socket.enabled") == 1
    assert "SharedArchiveFile" not in text
    assert "ArchiveClassesAtExit" not in text


def test_the_environment_brings_java_and_this_python():
    found = submit_environment(environ={"PATH": os.environ["PATH"]})
    assert found["PYSPARK_PYTHON"] == sys.executable
    assert os.path.exists(os.path.join(found["JAVA_HOME"], "bin", "java"))
    assert "PYSPARK_PYTHON" not in submit_environment(master="spark://h:7077", environ={"PATH": os.environ["PATH"]})


def test_the_module_tells_how_to_submit_it(tmp_path):
    environment = {**os.environ, "LANCE_ENGINE_CACHE": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "-m", "airflow_provider_lance.engine"],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    ).stdout
    assert "spark-submit" in told
    assert APPLICATION in told


def test_part_sizes_adapt_between_their_bounds():
    fixed = FlushPolicy(seconds=10, size=100)
    assert fixed.next(100, 0.1) == 100
    adaptive = FlushPolicy(seconds=10, size=100, low=50, high=1000)
    assert adaptive.next(100, 5.0) == 200
    assert adaptive.next(100, 0.001) == 1000
    assert adaptive.next(100, 1000.0) == 50
    assert (adaptive.first(), adaptive.smallest) == (100, 50)


def test_a_slow_function_gets_few_rows_and_a_fast_one_many():
    pace = Pace()
    for _ in range(10):
        pace.learn(pace.rows, 0.001)
    assert pace.rows == 8192
    for _ in range(20):
        pace.learn(pace.rows, 30.0)
    assert pace.rows == 1
    assert Pace(limit=10).rows == 10


def test_parts_of_different_attempts_are_joined_without_overlaps():
    def part(start, stop):
        return Part("k" * 32, 0, 1, start, stop, "")

    chosen = disjoint([part(0, 10), part(0, 20), part(15, 30), part(20, 25), part(40, 50)])
    assert [(one.start, one.stop) for one in chosen] == [(0, 20), (20, 25), (40, 50)]
    assert gaps(0, 60, chosen) == [(25, 40), (50, 60)]
    assert gaps(22, 45, chosen) == [(25, 40)]

"""The spark-submit command line and its environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_lance.engine.spark.submit_command import APPLICATION, submit_command, submit_environment


def test_the_command_names_the_packaged_application_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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


def test_the_environment_brings_java_and_this_python() -> None:
    found = submit_environment(environ={"PATH": os.environ["PATH"]})
    assert found["PYSPARK_PYTHON"] == sys.executable
    assert os.path.exists(os.path.join(found["JAVA_HOME"], "bin", "java"))
    assert "PYSPARK_PYTHON" not in submit_environment(master="spark://h:7077", environ={"PATH": os.environ["PATH"]})


def test_the_module_tells_how_to_submit_it(tmp_path: Path) -> None:
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

"""A driver that starts as Python gets what spark-submit gives it, and its JVM ends with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_lance.engine.spark import submit_command
from airflow_provider_lance.engine.spark.session import loopback_environment, submitted_master
from airflow_provider_lance.system.process_groups import ProcessGroup
from tests.namespace.conftest import wait_until

ROOT = Path(__file__).parents[3]
APPLICATION = """
import json, os, sys
from airflow_provider_lance.engine.spark.session import make_session

spark = make_session("both ways").sparkContext

def in_worker(_):
    import greeting
    return [greeting.WORD, os.environ.get("GIVEN"), sys.executable]

answer = {
    "arguments": sys.argv[1:],
    "worker": spark.parallelize([0], 1).map(in_worker).collect()[0],
    "conf": dict(spark.getConf().getAll()),
    "archive": os.path.exists(os.path.join(__import__("pyspark").SparkFiles.getRootDirectory(), "extra", "note.txt")),
    "jvm": int(spark._jvm.java.lang.ProcessHandle.current().pid()),
    "hash": hash("text"),
}
with open(sys.argv[1], "w") as file:
    json.dump(answer, file)
if sys.argv[-1] == "wait":
    sys.stdin.read()
"""
OF_THE_RUN = {"spark.app.id", "spark.app.startTime", "spark.app.submitTime", "spark.driver.port"}


class Runs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.application = folder / "application.py"
        self.application.write_text(APPLICATION)
        code = folder / "a folder"
        code.mkdir()
        (code / "greeting.py").write_text("WORD = 'hello'\n")
        (folder / "note.txt").write_text("packed")  # Spark reads no archive from a folder with a space
        subprocess.run(["tar", "-czf", "extra.tar.gz", "note.txt"], cwd=folder, check=True)
        properties = folder / "spark.properties"
        properties.write_text("spark.example.secret=two words and a \\\\ \"quote'\nspark.executorEnv.GIVEN=to all\n")
        self.options = [
            *("--properties-file", str(properties), "--load-spark-defaults"),
            *submit_command.submit_options(
                master="local[1,4]",
                deploy_mode="client",
                conf={"spark.example.line": 'it\'s $HOME "quoted" and spaced', "spark.ui.enabled": "false"},
                py_files=[str(code / "greeting.py")],
                archives=[f"{folder / 'extra.tar.gz'}#extra"],
            ),
        ]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.environ = {
            **environ,
            **submit_command.submit_environment(environ=environ),
            **loopback_environment("local"),
        }

    def start(self, way: str, *arguments: str) -> subprocess.Popen[bytes]:
        environ = self.environ
        if way == "python":
            command, more = submit_command.python_command(arguments, self.options, {}, environ)
            environ = environ | more
        else:
            program = submit_command.spark_submit_path()
            command = [program, *self.options, submit_command.APPLICATION, *arguments]
        return subprocess.Popen(
            command, cwd=self.folder, env=environ, stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )

    def answer(self, way: str) -> dict[str, object]:
        path = self.folder / f"{way}.json"
        process = self.start(way, str(path), "an argument")
        _, said = process.communicate(timeout=200)
        assert process.returncode == 0, said.decode()[-3000:]
        answer: dict[str, object] = json.loads(path.read_text())
        return answer


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs(tmp_path)
    monkeypatch.setattr(submit_command, "APPLICATION", str(runs.application))
    return runs


@pytest.mark.timeout(300)
def test_options_files_and_variables_arrive_as_with_spark_submit(runs: Runs) -> None:
    first, second = runs.answer("python"), runs.answer("spark-submit")
    for answer, way in ((first, "python"), (second, "spark-submit")):
        assert answer.pop("arguments") == [str(runs.folder / f"{way}.json"), "an argument"]
        answer.pop("jvm")
        conf = answer["conf"]
        assert isinstance(conf, dict)
        assert conf["spark.example.line"] == 'it\'s $HOME "quoted" and spaced'
        assert conf["spark.example.secret"] == "two words and a \\ \"quote'"
        assert answer["worker"] == ["hello", "to all", sys.executable]
        assert answer["archive"]
        answer["conf"] = {name: value for name, value in conf.items() if name not in OF_THE_RUN}
    assert first == second


@pytest.mark.timeout(300)
def test_the_jvm_is_of_the_drivers_group_and_ends_when_the_driver_is_killed(runs: Runs) -> None:
    told = runs.folder / "told.json"
    process = runs.start("python", str(told), "wait")
    group = ProcessGroup.of(process.pid)
    try:
        wait_until(lambda: told.exists() and told.read_text().endswith("}"), 120)
        jvm = json.loads(told.read_text())["jvm"]
        assert jvm != process.pid
        assert (os.getpgid(jvm), os.getsid(jvm)) == (process.pid, process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
        wait_until(lambda: not group.alive, 60)
    finally:
        group.kill()


def test_the_master_is_known_without_a_jvm() -> None:
    options = ["--conf", "spark.app.name=--master x", "--master", "spark://host:7077"]
    _, variables = submit_command.python_command([], options, {}, {})
    assert submitted_master(variables) == "spark://host:7077"
    assert submitted_master({}) is None
    assert submitted_master({"PYSPARK_SUBMIT_ARGS": "--jars a.jar pyspark-shell"}) is None


def test_a_spark_of_its_own_brings_its_own_pyspark(tmp_path: Path) -> None:
    libraries = tmp_path / "python" / "lib"
    libraries.mkdir(parents=True)
    for name in ("py4j-0.0-src.zip", "pyspark.zip"):
        (libraries / name).touch()
    environ = {"SPARK_HOME": str(tmp_path), "PYTHONPATH": "mine", "PYSPARK_DRIVER_PYTHON": "python-of-spark"}
    command, variables = submit_command.python_command(["--plan"], [], {}, environ)
    paths = [str(libraries / "py4j-0.0-src.zip"), str(libraries / "pyspark.zip"), "mine"]
    assert variables["PYTHONPATH"].split(os.pathsep) == paths
    assert command == ["python-of-spark", submit_command.APPLICATION, "--plan"]
    command, _ = submit_command.python_command([], [], {"spark.pyspark.python": "of-conf"}, environ)
    assert command[0] == "of-conf"

"""The configuration file, and the command line, files and environment a driver is started with."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_lance.engine.spark.submit_command import APPLICATION
from airflow_provider_lance.namespace.config import ConfigError, ServerConfig
from airflow_provider_lance.namespace.jobs.driver_logs import DriverLogs
from airflow_provider_lance.namespace.jobs.executions import Launch
from airflow_provider_lance.namespace.jobs.launcher import Launcher, LaunchError
from airflow_provider_lance.system.process_groups import ProcessGroup, find_group

CLUSTERS = """
[clusters.etl]
master = "yarn"
deploy_mode = "cluster"
conf = { "spark.hadoop.fs.s3a.secret.key" = "${S3_SECRET}", "spark.dynamicAllocation.enabled" = true }
spark_submit = "${SPARK_SUBMIT}"
py_files = ["a.py", "b.zip"]
env = { HADOOP_CONF_DIR = "/etc/hadoop" }
max_drivers = 5

[environments.vision]
archives = ["vision.tar.gz#environment"]
env = { HF_HOME = "/models" }
image = "registry/vision:1"

[limits]
threads = 8
"""
LAUNCH = Launch("job-1", 2, "the launch token", "etl", "vision", "backfill_column", "a$t")


def test_a_file_is_read_with_its_variables(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text(CLUSTERS)
    config = ServerConfig.load(tmp_path / "server.toml", {"S3_SECRET": "hidden", "SPARK_SUBMIT": "/opt/spark-submit"})
    cluster = config.cluster("etl")
    assert cluster.conf["spark.hadoop.fs.s3a.secret.key"] == "hidden"
    assert cluster.conf["spark.dynamicAllocation.enabled"] == "true"
    assert cluster.max_drivers == 5
    assert config.limits.threads == 8
    assert config.environment("vision").image == "registry/vision:1"
    assert config.cluster_names == ("etl", "local", "external")
    assert config.cluster(None).master.startswith("local[*")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[clusters.a]\nmaster = 5", "`clusters.a.master` must be a string"),
        ("[clusters.a]\nmastre = 'x'", r"\[clusters.a\] has no entry 'mastre'"),
        ("[clusters.a]\ndeploy_mode = 'both'", "client or cluster"),
        ("[clusters.a]\nlaunch = 'java'", "auto, python or spark-submit"),
        ("[clusters.a]\nlaunch = 'python'\nmaster = 'yarn'", "needs a local or standalone master"),
        ("[clusters.a]\nlaunch = 'python'\ndeploy_mode = 'cluster'", "deploy_mode client"),
        ("[clusters.a]\nlaunch = 'python'\nspark_submit = 'x'", "no `spark_submit`"),
        ("[clusters.a]\nmax_drivers = 0", "at least 1"),
        ("[clusters.a]\nmax_drivers = 1.5", "whole number"),
        ("[clusters.a]\ndriver_rows = -1", "0 or more"),
        ("[clusters.a]\ndriver_rows = 0.5", "whole number"),
        ("[clusters.a]\nreuse = 'always'", "sql, function or never"),
        ("[clusters.a]\nstandby = -1", "0 or more"),
        ("[clusters.a]\nstandby = 1\nmaster = 'yarn'", "needs drivers that start as Python"),
        ("[clusters.a]\nstandby = 1\nlaunch = 'spark-submit'", "needs drivers that start as Python"),
        ("[clusters.a]\nidle_seconds = 0", "`idle_seconds` must be above 0"),
        ("[clusters.a]\nmax_jobs = 0", "`max_jobs` must be above 0"),
        ("[clusters.a]\nreuse_memory_bytes = 0", "`reuse_memory_bytes` must be above 0"),
        ("[clusters.a]\npy_files = 'a.py'", "list of strings"),
        ("[clusters.a]\nconf = { a = [1] }", "strings, numbers or booleans"),
        ("[clusters.a]\nconf = { a = '${NOT_SET}' }", "NOT_SET, which is not set"),
        ("[clusters.external]\nmaster = 'x'", "cannot be called 'external'"),
        ("[cluster.a]", "unknown section 'cluster'"),
        ("[limits]\nthreads = -1", "above 0"),
        ("nonsense", "not valid TOML"),
    ],
)
def test_mistakes_in_it_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "server.toml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        ServerConfig.load(tmp_path / "server.toml", {})


def test_a_cluster_driver_is_started_without_a_secret_on_its_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANCE_REGISTRY", "postgresql://lance:of-the-server@db/jobs")
    monkeypatch.setenv("LANCE_API_KEY", "key-of-the-server")
    (tmp_path / "server.toml").write_text(CLUSTERS)
    recorder = tmp_path / "spark-submit"
    recorder.write_text(f'#!/bin/sh\nprintf \'%s\\n\' "$0" "$@" > {tmp_path}/command\nenv > {tmp_path}/env\n')
    recorder.chmod(0o755)
    environ = {"S3_SECRET": "hid=den \\ über\nline", "SPARK_SUBMIT": str(recorder)}
    launcher = Launcher(ServerConfig.load(tmp_path / "server.toml", environ), tmp_path / "state", "http://server:2333")
    driver = launcher.start(LAUNCH)
    assert driver.child is not None
    assert driver.child.wait() == 0
    command = (tmp_path / "command").read_text().splitlines()
    variables = (tmp_path / "env").read_text().splitlines()
    text = " ".join(command)
    assert "hid=den" not in text
    assert LAUNCH.token not in text
    assert command[command.index("--master") + 1] == "yarn"
    assert command[command.index("--deploy-mode") + 1] == "cluster"
    assert command[command.index("--py-files") + 1] == "a.py,b.zip"
    assert command[command.index("--archives") + 1] == "vision.tar.gz#environment"
    assert command[command.index("--files") + 1].endswith("launch.json")
    after = command[command.index(APPLICATION) + 1 :]
    assert after == ["--job-id", "job-1", "--attempt", "2", "--namespace", "http://server:2333"]
    properties = Path(command[command.index("--properties-file") + 1])
    assert properties.stat().st_mode & 0o077 == 0
    lines = properties.read_text().splitlines()
    assert "spark.hadoop.fs.s3a.secret.key=hid=den \\\\ \\u00fcber\\nline" in lines
    assert "spark.kubernetes.driverEnv.LANCE_JOB_TOKEN_FILE=launch.json" in lines
    assert "spark.executorEnv.HF_HOME=/models" in lines
    assert "HADOOP_CONF_DIR=/etc/hadoop" in variables
    assert "HF_HOME=/models" in variables
    assert "of-the-server" not in "".join(variables)
    assert "--load-spark-defaults" in command[: command.index(APPLICATION)]
    assert launcher.end("job-1", 2, driver)
    assert not properties.exists()


@pytest.mark.parametrize(
    ("cluster", "python"),
    [
        ({}, True),
        ({"master": "local[2]", "launch": "python"}, True),
        ({"master": "spark://host:7077"}, True),
        ({"launch": "spark-submit"}, False),
        ({"spark_submit": "/opt/spark-submit"}, False),
        ({"master": "yarn"}, False),
        ({"master": "k8s://https://host"}, False),
        ({"master": "spark://host:7077", "deploy_mode": "cluster"}, False),
    ],
)
def test_python_is_started_first_where_the_driver_runs_here(cluster: dict[str, str], python: bool) -> None:
    assert ServerConfig.from_dict({"clusters": {"a": cluster}}).cluster("a").starts_python is python


@pytest.mark.parametrize("reuse", ["never", "sql", "function"])
def test_a_driver_that_starts_as_python_has_the_options_of_spark_submit_in_a_variable(
    tmp_path: Path, reuse: str
) -> None:
    recorder = tmp_path / "python"
    recorder.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/command\nenv -0 > {tmp_path}/env\n")
    recorder.chmod(0o755)
    cluster = {
        "master": "spark://host:7077",
        "conf": {"spark.hidden": "a secret", "spark.task.maxFailures": "7"},
        "py_files": ["a file.py", "b.zip"],
        "driver_rows": 0,
        "reuse": reuse,
        "env": {"PYSPARK_DRIVER_PYTHON": str(recorder)},
    }
    environment = {"archives": ["vision.tar.gz#it's"], "env": {"HF_HOME": "/models"}}
    config = ServerConfig.from_dict({"clusters": {"etl": cluster}, "environments": {"vision": environment}})
    launcher = Launcher(config, tmp_path / "state", "http://server:2333")
    driver = launcher.start(LAUNCH)
    assert driver.child is not None
    assert driver.child.wait() == 0
    command = (tmp_path / "command").read_text().splitlines()
    after = ["--job-id", "job-1", "--attempt", "2", "--namespace", "http://server:2333", "--driver-rows", "0"]
    assert command[: 1 + len(after)] == [APPLICATION, *after]
    kept = [argument for argument in command[1 + len(after) :] if not argument.isdigit()]  # without a descriptor
    assert kept == {"never": [], "sql": ["--channel"], "function": ["--channel", "--same-function"]}[reuse]
    variables = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().split("\0") if line)
    *options, last = shlex.split(variables["PYSPARK_SUBMIT_ARGS"])
    assert last == "pyspark-shell"
    assert options[options.index("--master") + 1] == "spark://host:7077"
    assert options[options.index("--py-files") + 1] == "a file.py,b.zip"
    assert options[options.index("--archives") + 1] == "vision.tar.gz#it's"
    assert "spark.task.maxFailures=7" in options
    assert "a secret" not in variables["PYSPARK_SUBMIT_ARGS"]
    properties = Path(options[options.index("--properties-file") + 1]).read_text().splitlines()
    assert "spark.hidden=a secret" in properties
    assert "spark.executorEnv.HF_HOME=/models" in properties
    assert variables["HF_HOME"] == "/models"
    assert Path(variables["LANCE_JOB_TOKEN_FILE"]).stat().st_mode & 0o077 == 0
    assert find_group(f"LANCE_JOB_TOKEN_FILE={variables['LANCE_JOB_TOKEN_FILE']}") is None  # it has ended
    properties_folder = Path(options[options.index("--properties-file") + 1]).parent
    assert launcher.end("job-1", 2, driver)
    assert not properties_folder.exists()
    early = launcher.start(replace(LAUNCH, job_id="job-2", on_spark=True))
    assert early.child is not None
    assert early.child.wait() == 0
    assert "--start-spark" in (tmp_path / "command").read_text().splitlines(), "it starts Spark before its claim"


def test_no_spark_submit_is_a_sentence(tmp_path: Path) -> None:
    config = ServerConfig.from_dict({"clusters": {"local": {"spark_submit": str(tmp_path / "none")}}})
    launch = Launch("job-1", 1, "token", "local", None, "backfill_column", "t")
    with pytest.raises(LaunchError, match="cannot be started: No such file"):
        Launcher(config, tmp_path / "state", "http://x").start(launch)


class TestProcessGroups:
    def test_a_group_is_killed_even_after_its_leader_died(self) -> None:
        mark = f"LANCE_TEST_MARK={time.time_ns()}"
        name, _, value = mark.partition("=")
        script = "sleep 60 & sleep 60 & echo started; wait"
        leader = subprocess.Popen(
            ["/bin/sh", "-c", script], start_new_session=True, env={name: value}, stdout=subprocess.PIPE
        )
        assert leader.stdout is not None
        assert leader.stdout.readline() == b"started\n"
        group = ProcessGroup.of(leader.pid, mark)
        assert group.leader_alive
        leader.kill()
        leader.wait()
        assert not group.leader_alive
        assert group.alive
        assert find_group(mark) is not None
        assert group.kill()
        assert not group.alive
        assert find_group(mark) is None

    def test_somebody_elses_process_with_that_number_is_left_alone(self) -> None:
        other = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
        mine = ProcessGroup.of(other.pid, "LANCE_JOB_TOKEN_FILE=/nowhere")
        for stranger in (
            ProcessGroup(mine.host, mine.boot, mine.pid, "1", mine.mark),
            ProcessGroup("elsewhere", mine.boot, mine.pid, mine.started, mine.mark),
            ProcessGroup(mine.host, "another boot", mine.pid, mine.started, mine.mark),
        ):
            assert not stranger.alive
            stranger.kill()
            assert other.poll() is None
        assert mine.kill()
        other.wait()


class TestLogs:
    def test_a_log_is_cut_from_its_front_while_its_driver_writes_on(self, tmp_path: Path) -> None:
        logs = DriverLogs(tmp_path, max_bytes=1000)
        with logs.open("job", 1) as handle:
            for number in range(100):
                os.write(handle, f"line number {number}\n".encode())
            logs.bound("job", 1)
            os.write(handle, b"and on it goes\n")
        text = logs.tail("job")
        assert len(text) < 800
        assert text.startswith("[earlier lines were dropped")
        assert text.endswith("line number 99\nand on it goes\n")
        assert logs.path("job", 1).stat().st_mode & 0o077 == 0

    def test_the_end_is_read_from_the_start_of_a_line(self, tmp_path: Path) -> None:
        logs = DriverLogs(tmp_path, max_bytes=10_000)
        for attempt in (1, 2):
            with logs.open("job", attempt) as handle:
                os.write(handle, f"first of {attempt}\nsecond of {attempt}\n".encode())
        assert logs.tail("job", most_bytes=20) == "second of 2\n"
        assert logs.tail("job", 1) == "first of 1\nsecond of 1\n"
        assert logs.tail("job", 3) == ""
        assert logs.tail("none") == ""
        assert logs.last_lines("job", 2, lines=1) == "second of 2"
        logs.delete("job")
        assert logs.attempts("job") == []

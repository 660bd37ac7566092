"""A driver of several jobs: a Spark session for each of them, and output in the log of the job at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_lance.engine.job.driver_output import DriverOutput
from airflow_provider_lance.engine.spark.kept_spark import KeptSpark
from airflow_provider_lance.engine.views.warm_up import warm_up_queries
from airflow_provider_lance.engine.waiting_driver import NotForThisDriverError, WaitingDriver
from airflow_provider_lance.system.channels import Channel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TWO_JOBS = """
import subprocess, sys
from airflow_provider_lance.engine.job.driver_output import DriverOutput
output = DriverOutput()
output.to(sys.argv[1])
print("driver of job 1", flush=True)
with output.of_jvm():
    # It stands for the JVM, which keeps the descriptors that it was started with.
    script = "echo jvm of job 1; read line; echo jvm of job 2"
    child = subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.PIPE)
    while "jvm of job 1" not in open(sys.argv[1]).read():
        pass
output.to(sys.argv[2])
print("driver of job 2", flush=True)
child.communicate(b"go on\\n")
while "jvm of job 2" not in open(sys.argv[2]).read():
    pass
print("still of job 2", flush=True)
"""


def test_the_output_of_driver_and_jvm_is_in_the_log_of_their_job(tmp_path: Path) -> None:
    logs = [tmp_path / "1.log", tmp_path / "2.log"]
    subprocess.run([sys.executable, "-c", TWO_JOBS, *map(str, logs)], check=True, timeout=60)
    assert set(logs[0].read_text().splitlines()) == {"driver of job 1", "jvm of job 1"}
    assert set(logs[1].read_text().splitlines()) == {"driver of job 2", "jvm of job 2", "still of job 2"}
    assert all(log.stat().st_mode & 0o077 == 0 for log in logs)


class OutputOfPytest(DriverOutput):
    """Leaves the descriptors of this process alone, which pytest has replaced itself."""

    @contextmanager
    def of_jvm(self) -> Iterator[None]:
        yield


@pytest.fixture
def kept(spark: SparkSession) -> KeptSpark:
    kept = KeptSpark(None, OutputOfPytest())
    kept._first = spark
    return kept


def test_views_and_settings_of_one_job_are_not_those_of_the_next(kept: KeptSpark) -> None:
    first = kept.session("job 1")
    first.range(3).createOrReplaceTempView("left")
    first.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    assert [table.name for table in first.catalog.listTables()] == ["left"]
    kept.end_job()
    second = kept.session("job 2")
    assert second.catalog.listTables() == []
    assert second.conf.get("spark.sql.session.timeZone") != "Asia/Tokyo"
    assert second.sparkContext is first.sparkContext


def test_warming_up_leaves_nothing_in_the_session_of_a_job(kept: KeptSpark, tmp_path: Path) -> None:
    for _ in range(2):
        kept.warm_up(lambda session: warm_up_queries(session, str(tmp_path)))
    assert (tmp_path / "warm-up.lance").is_dir()
    assert kept.session("job 1").catalog.listTables() == []
    assert not kept.holds_executors


def test_a_failed_warm_up_is_left_to_the_job_that_needs_spark(
    kept: KeptSpark, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: SparkSession) -> None:
        raise OSError("no room for a table")

    kept.warm_up(fail)
    assert "no room for a table" in caplog.text
    assert kept.session("job 1").range(2).count() == 2


class TestAdmission:
    @pytest.fixture
    def driver(self) -> WaitingDriver:
        channel, self.other_end = Channel.pair()
        return WaitingDriver(channel, "http://127.0.0.1:1", master=None, driver_rows=1)

    @pytest.mark.parametrize("code", ["", "t|f"])
    def test_the_first_job_may_run_anything(self, driver: WaitingDriver, code: str) -> None:
        driver._admit(code)

    @pytest.mark.parametrize(("before", "code"), [("", "t|f"), ("t|f", ""), ("t|f", "t|g"), ("t|f", "u|f")])
    def test_a_later_one_only_what_the_driver_has_run(self, driver: WaitingDriver, before: str, code: str) -> None:
        driver._jobs, driver._user_code = 1, before
        driver._admit(before)
        with pytest.raises(NotForThisDriverError, match="A fresh driver runs it"):
            driver._admit(code)


class TestChannels:
    def test_messages_arrive_whole_and_in_order(self) -> None:
        here, end = Channel.pair()
        there = Channel.of_descriptor(end.detach())
        assert not there.wait(0)
        assert here.send({"number": 1})
        assert here.send({"text": "x" * 100_000})
        assert there.wait(10)
        assert there.receive() == {"number": 1}
        assert there.receive() == {"text": "x" * 100_000}

    def test_each_side_learns_that_the_other_is_gone(self) -> None:
        here, end = Channel.pair()
        there = Channel.of_descriptor(end.detach())
        here.close()
        assert there.wait(10)
        assert there.receive() is None
        assert not there.send({})

    def test_no_child_inherits_it(self) -> None:
        here, end = Channel.pair()
        descriptor = os.dup(end.fileno())
        os.set_inheritable(descriptor, True)  # as it is in a driver that has been started with it
        there = Channel.of_descriptor(descriptor)
        assert not os.get_inheritable(descriptor)
        assert here.send({"number": 1})
        assert there.receive() == {"number": 1}

"""Which waiting driver may take which job, and why not; without processes."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_lance.namespace.config import Cluster, ServerConfig
from airflow_provider_lance.namespace.jobs import launcher as launcher_module
from airflow_provider_lance.namespace.jobs.database import Database, sqlite_url
from airflow_provider_lance.namespace.jobs.driver_pool import KeptDriver, Needs
from airflow_provider_lance.namespace.jobs.launcher import Driver
from airflow_provider_lance.namespace.jobs.registry import JobRow
from airflow_provider_lance.namespace.jobs.service import JobsService
from airflow_provider_lance.namespace.submission import JobSubmission
from airflow_provider_lance.system.process_groups import ProcessGroup
from tests.namespace.conftest import QUICK, submission

CONFIG = ServerConfig.from_dict(
    {"clusters": {"local": {}, "other": {}, "never": {"reuse": "never"}}, "environments": {"vision": {}}}
)


@pytest.fixture
def service(tmp_path: Path) -> JobsService:
    """A jobs service whose supervisor does nothing; the table ``shared`` has the storage options of ``t``."""
    database = Database(sqlite_url(tmp_path / "jobs.sqlite"))
    return JobsService(
        database,
        CONFIG,
        directory=tmp_path / "state",
        namespace_url="http://127.0.0.1:1",
        timings=QUICK,
        vend=lambda spec: {"key": "t" if spec.table_id == ["shared"] else spec.table_id[0]},
    )


def row(service: JobsService, wanted: JobSubmission) -> JobRow:
    found = service.registry.get(service.submit(wanted))
    assert found is not None
    return found


def keep(service: JobsService, job: JobSubmission | None) -> KeptDriver:
    """A driver of cluster ``local`` that waits, after ``job`` or before its first one."""
    launcher, pool = service.launcher, service.supervisor.pool
    environment = job.environment if job is not None else None
    driver = Driver(ProcessGroup.of(os.getpgrp()))
    kept = KeptDriver(driver, "local", environment, launcher.recipe("local", environment))
    if job is not None:
        kept.jobs, kept.needs = 1, pool.needs_of(row(service, job))
    pool._kept.append(kept)
    return kept


def sql(column: str, table: str = "t", **fields: str) -> JobSubmission:
    return replace(submission(column, table, **fields), user_code="")  # type: ignore[arg-type]


def function(column: str, code: str = "f", table: str = "t") -> JobSubmission:
    return replace(submission(column, table), user_code=code)


def chosen(service: JobsService, job: JobSubmission) -> tuple[str, str]:
    found = row(service, job)
    pool = service.supervisor.pool
    choice = pool.choose(found, pool.needs_of(found), ())
    return choice.path.value, choice.message


@pytest.mark.parametrize(
    ("before", "job", "path", "words"),
    [
        (None, sql("a"), "standby", "waiting for its first job"),
        (None, function("a"), "standby", "waiting for its first job"),
        (
            None,
            sql("a", environment="vision"),
            "cold",
            "names environment 'vision', and the waiting driver",
        ),
        (None, sql("a", cluster="other"), "cold", "Launching a driver"),
        (sql("b"), sql("a"), "reused", "has run one job before"),
        (sql("b"), sql("a", "shared"), "reused", "has run one job before"),
        (sql("b"), sql("a", "private"), "cold", "has served other storage credentials"),
        (sql("b"), function("a"), "cold", "the job runs a function"),
        (sql("b"), submission("a"), "cold", "it is not known whether the job runs a function"),
        (sql("b", environment="vision"), sql("a"), "cold", "names no environment"),
        (sql("b", environment="vision"), sql("a", environment="vision"), "reused", "has run one job before"),
        (function("b"), sql("a"), "cold", "the waiting driver has run a function"),
        (function("b"), function("a"), "reused", "has run one job before"),
        (function("b"), function("a", "g"), "cold", "the job runs a function"),
        (function("b"), function("a", table="shared"), "cold", "the job runs a function"),
    ],
)
def test_a_job_gets_a_waiting_driver_or_the_reason_why_not(
    service: JobsService, before: JobSubmission | None, job: JobSubmission, path: str, words: str
) -> None:
    keep(service, before)
    found = chosen(service, job)
    assert found[0] == path
    assert words in found[1]


def test_a_driver_that_has_run_jobs_is_preferred_to_one_that_can_run_anything(service: JobsService) -> None:
    keep(service, None)
    keep(service, sql("b"))
    assert chosen(service, sql("a"))[0] == "reused"
    assert chosen(service, function("c"))[0] == "standby"


def test_a_job_that_lost_its_driver_gets_a_fresh_one(service: JobsService) -> None:
    keep(service, sql("b"))
    found = row(service, sql("a"))
    launch = service.executions.begin_launch(found.job_id, 0)
    assert launch is not None
    launched = service.registry.get(found.job_id)
    assert launched is not None
    service.executions.driver_died(launched, "It died.")
    again = service.registry.get(found.job_id)
    assert again is not None
    pool = service.supervisor.pool
    assert pool.choose(again, pool.needs_of(again), ()).message == "Launching a driver"


def test_a_job_waits_a_moment_for_a_driver_that_comes_back(service: JobsService) -> None:
    kept = keep(service, sql("b"))
    kept.job, kept.returning = ("its job", 1), time.monotonic()
    pool = service.supervisor.pool
    found = row(service, sql("a"))
    assert pool.choose(found, pool.needs_of(found), ()).soon
    other = row(service, function("c"))
    assert not pool.choose(other, pool.needs_of(other), ()).soon
    kept.returning -= 60
    assert not pool.choose(found, pool.needs_of(found), ()).soon


def test_a_job_waits_for_a_driver_whose_job_has_just_ended(service: JobsService) -> None:
    kept = keep(service, sql("b"))
    kept.job = ("its job", 1)
    pool = service.supervisor.pool
    found = row(service, sql("a"))
    assert not pool.choose(found, pool.needs_of(found), [("its job", 1)]).soon
    assert pool.choose(found, pool.needs_of(found), []).soon


CHANGED = "the configuration or the installed packages have changed since the waiting driver was started"


class TestWhatWasStartedBeforeAChangeDoesNotServe:
    def test_configuration(self, service: JobsService) -> None:
        keep(service, None)
        service.launcher.config = ServerConfig(clusters={"local": Cluster(conf={"spark.executor.memory": "2g"})})
        assert chosen(service, sql("a")) == ("cold", f"Launching a driver: {CHANGED}")

    def test_an_upgrade(self, service: JobsService, monkeypatch: pytest.MonkeyPatch) -> None:
        keep(service, sql("b"))
        monkeypatch.setattr(launcher_module, "_installed", lambda: [1.0])
        assert chosen(service, sql("a")) == ("cold", f"Launching a driver: {CHANGED}")

    def test_a_rotated_key_in_the_environment(self, service: JobsService, monkeypatch: pytest.MonkeyPatch) -> None:
        keep(service, sql("b"))
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        assert chosen(service, sql("a")) == ("cold", f"Launching a driver: {CHANGED}")

    def test_a_rotated_key_of_the_storage(self, service: JobsService) -> None:
        keep(service, sql("b"))
        service.vend = lambda _: {"key": "another"}
        assert "other storage credentials" in chosen(service, sql("a"))[1]

    def test_code_that_is_sent_along(self, service: JobsService, tmp_path: Path) -> None:
        code = tmp_path / "code.py"
        code.write_text("x = 1\n")
        service.launcher.config = ServerConfig(clusters={"local": Cluster(py_files=(str(code),))})
        keep(service, None)
        assert chosen(service, sql("a"))[0] == "standby"
        os.utime(code, (1, 1))
        assert chosen(service, sql("b")) == ("cold", f"Launching a driver: {CHANGED}")

    def test_the_packages_are_looked_at(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        before = launcher_module._installed()
        assert before == launcher_module._installed()
        (tmp_path / "site-packages").mkdir()
        monkeypatch.setattr("sys.path", [str(tmp_path / "site-packages")])
        first = launcher_module._installed()
        os.utime(tmp_path / "site-packages", (1, 1))
        assert launcher_module._installed() != first


def test_without_credentials_that_can_be_had_no_driver_is_used_again(service: JobsService) -> None:
    keep(service, sql("b"))

    def vend(_: object) -> dict[str, str]:
        raise OSError("the vendor is away")

    service.vend = vend
    assert chosen(service, sql("a"))[0] == "cold"


def test_what_a_job_needs_shows_no_credential(service: JobsService) -> None:
    service.vend = lambda _: {"key": "a very secret one"}
    needs = service.supervisor.pool.needs_of(row(service, sql("a")))
    assert isinstance(needs, Needs)
    assert "secret" not in repr(needs)


@pytest.mark.parametrize(
    ("cluster", "job", "stays"),
    [
        ({}, sql("a"), True),
        ({}, function("a"), False),
        ({"reuse": "function"}, function("a"), True),
        ({"reuse": "never", "standby": 1}, sql("a"), False),
        ({"max_jobs": 2}, sql("a"), False),
        ({"max_jobs": 3}, sql("a"), True),
        ({"reuse_memory_bytes": 1 << 20}, sql("a"), False),
        ({}, submission("a"), False),
    ],
)
def test_a_driver_stays_after_a_job_or_ends(
    service: JobsService, cluster: dict[str, object], job: JobSubmission, stays: bool
) -> None:
    service.launcher.config = ServerConfig.from_dict({"clusters": {"local": cluster}})
    kept = keep(service, job)
    kept.free.set()
    assert service.supervisor.pool._may_stay(kept) is stays

"""The drivers of one server that wait for a job, before their first one or after it, and which job each may take.

A driver that has run a job takes another one only with the same cluster, environment and storage credentials, and only
if neither of the two runs code of a user; with ``reuse = "function"`` also if both run the same function for the same
table. The supervisor's thread owns the pool. A thread for each driver only notes that it is free, or gone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from airflow_provider_lance.api.job_states import EXTERNAL, JobState, StartPath
from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.namespace.config import Cluster, ConfigError
from airflow_provider_lance.namespace.jobs.executions import Launch
from airflow_provider_lance.namespace.jobs.launcher import OWN_LOG, Driver, Launcher, LaunchError
from airflow_provider_lance.namespace.jobs.registry import JobRow

log = logging.getLogger(__name__)

#: Gives the storage options of a spec's tables.
StorageOptions = Callable[[JobSpec], Mapping[str, str] | None]
AttemptKey = tuple[str, int]

# A driver that has reported the end of its job is free within milliseconds, much sooner than another one is started.
_RETURN_SECONDS = 5.0
# A driver that took a job is replaced only after this time: most jobs end sooner, and their driver comes back.
_REPLACE_SECONDS = 5.0
# Jobs often come in groups, so a driver beyond those that may wait for long is there for the next of a group.
_SURPLUS_SECONDS = 10.0
# A waiting driver whose recipe is no longer current ends after about this time; it takes no job from the beginning.
_LOOK_SECONDS = 10.0
# A driver that was told to end may take this long.
_LEAVE_SECONDS = 10.0
_CLOSE_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 300.0


@dataclass(frozen=True)
class Needs:
    """What a job asks of a driver. ``code`` is the user's code that it runs, "" for none and None if not known.

    ``storage`` is equal for jobs with the same storage options.
    """

    cluster: str
    environment: str | None
    code: str | None
    storage: str


@dataclass
class KeptDriver:
    """A driver that runs one job after another, and what it was started with."""

    driver: Driver
    cluster: str
    environment: str | None
    recipe: str
    jobs: int = 0
    job: AttemptKey | None = None  # the one that it runs, or whose end it has reported
    needs: Needs | None = None  # those of its last job
    since: float = field(default_factory=time.monotonic)  # when it took its job, or began to wait
    looked: float = field(default_factory=time.monotonic)  # when its recipe was compared
    returning: float | None = None  # when the end of its job was seen
    free: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)

    @property
    def waits(self) -> bool:
        return self.job is None and not self.gone.is_set()

    def is_returning(self, running: Collection[AttemptKey]) -> bool:
        """Whether the driver has reported the end of its job and is about to be free."""
        if self.job is None or self.gone.is_set():
            return False
        if self.returning is None:
            return self.job not in running  # its job ended after the supervisor looked at the drivers
        return time.monotonic() - self.returning < _RETURN_SECONDS

    def is_stale(self, launcher: Launcher) -> bool:
        """Whether a driver would be started otherwise now; looked up every few seconds while it waits."""
        if time.monotonic() - self.looked < _LOOK_SECONDS:
            return False
        self.looked = time.monotonic()
        try:
            return self.recipe != launcher.recipe(self.cluster, self.environment)
        except ConfigError:
            return True

    def refuses(self, needs: Needs, recipe: str) -> str | None:
        """Why this driver may not take a job; None if it may."""
        if needs.environment != self.environment:
            started = f"with environment {self.environment!r}" if self.environment else "without an environment"
            wanted = f"environment {needs.environment!r}" if needs.environment else "no environment"
            return f"the job names {wanted}, and the waiting driver was started {started}"
        if recipe != self.recipe:
            return "the configuration or the installed packages have changed since the waiting driver was started"
        before = self.needs
        if before is None:
            return None
        if needs.storage != before.storage:
            return "the waiting driver has served other storage credentials"
        if needs.code is None:
            return "it is not known whether the job runs a function"
        if needs.code != before.code:
            return "the job runs a function" if needs.code else "the waiting driver has run a function"
        return None


@dataclass(frozen=True)
class Choice:
    """Which driver a job gets. ``soon`` says that one which fits is about to be free."""

    kept: KeptDriver | None = None
    reason: str | None = None
    soon: bool = False

    @property
    def path(self) -> StartPath:
        if self.kept is None:
            return StartPath.COLD
        return StartPath.REUSED if self.kept.jobs else StartPath.STANDBY

    @property
    def message(self) -> str:
        """The event of the job."""
        if self.kept is None:
            return f"Launching a driver: {self.reason}" if self.reason else "Launching a driver"
        if not self.kept.jobs:
            return "Given to a driver that was waiting for its first job"
        jobs = "one job" if self.kept.jobs == 1 else f"{self.kept.jobs} jobs"
        return f"Given to a driver that has run {jobs} before"


class DriverPool:
    """The kept drivers of a server. ``wake`` starts a round of its supervisor."""

    def __init__(self, launcher: Launcher, wake: Callable[[], None]) -> None:
        self.launcher = launcher
        self.storage_options: StorageOptions = lambda _: None
        self._wake = wake
        self._kept: list[KeptDriver] = []
        self._leaving: list[tuple[float, Driver]] = []
        self._pauses: dict[str, tuple[float, float]] = {}  # by cluster: until when none is started, and the last pause

    @property
    def waiting(self) -> int:
        """How many drivers wait for a job."""
        return sum(kept.waits for kept in self._kept)

    def needs_of(self, row: JobRow) -> Needs:
        try:
            options = dict(self.storage_options(JobSpec.from_dict(row.spec)) or {})
            storage = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()
        except Exception:
            log.debug("The storage options of job %s are not known", row.job_id, exc_info=True)
            storage = f"unknown:{row.job_id}"
        code = f"{row.table_name}|{row.user_code}" if row.user_code else row.user_code
        return Needs(row.cluster, row.environment, code, storage)

    def choose(self, row: JobRow, needs: Needs, running: Collection[AttemptKey]) -> Choice:
        """The driver for a job; a job whose driver died gets a fresh one. ``running`` are the attempts that go on."""
        if not self._cluster(row.cluster).keeps_drivers or row.attempt > 0:
            return Choice()
        recipe = self.launcher.recipe(row.cluster, row.environment)
        reason = None
        # Drivers that have run jobs come first: one that waits for its first job can also run functions.
        for kept in sorted(self._of(row.cluster), key=lambda kept: (not kept.jobs, -kept.since)):
            if kept.waits:
                refusal = kept.refuses(needs, recipe)
                if refusal is None:
                    return Choice(kept)
                reason = reason or refusal
        soon = any(kept.is_returning(running) and kept.refuses(needs, recipe) is None for kept in self._of(row.cluster))
        return Choice(reason=reason, soon=soon)

    def assign(self, kept: KeptDriver, launch: Launch, needs: Needs) -> bool:
        """Hand a job over; False if the driver is gone."""
        kept.job, kept.needs, kept.since = (launch.job_id, launch.attempt), needs, time.monotonic()
        kept.free.clear()
        message = {
            "job_id": launch.job_id,
            "attempt": launch.attempt,
            "log": str(self.launcher.logs.create(launch.job_id, launch.attempt)),
            **self.launcher.secrets(launch),
        }
        return kept.driver.channel is not None and kept.driver.channel.send(message)

    def add(self, driver: Driver, cluster: str, environment: str | None) -> KeptDriver | None:
        """Look after a driver that was started; None for one that runs a single job."""
        if driver.channel is None:
            return None
        kept = KeptDriver(driver, cluster, environment, self.launcher.recipe(cluster, environment))
        self._kept.append(kept)
        threading.Thread(target=self._listen, args=(kept,), name="lance-driver", daemon=True).start()
        return kept

    def started(self, driver: Driver, launch: Launch, needs: Needs) -> None:
        """Note that a driver was started for a job."""
        kept = self.add(driver, launch.cluster, launch.environment)
        if kept is not None:
            kept.job, kept.needs = (launch.job_id, launch.attempt), needs

    def _listen(self, kept: KeptDriver) -> None:
        assert kept.driver.channel is not None
        while kept.driver.channel.receive() is not None:
            kept.free.set()
            self._wake()
        kept.gone.set()
        self._wake()

    def take_back(self, key: AttemptKey, row: JobRow | None, server_id: str) -> bool:
        """Let a driver whose job has ended wait for the next one; False if it has to end, or is not free yet."""
        kept = next((kept for kept in self._kept if kept.job == key), None)
        if kept is None or kept.gone.is_set():
            return False
        # Another server that took the job over would end this driver.
        mine = row is not None and row.state == JobState.DONE.value and row.attempt == key[1]
        if not mine or row is None or row.server_id != server_id or not self._may_stay(kept):
            self._retire(kept, "its job is over")
            return False
        if not kept.free.is_set():
            kept.returning = kept.returning or time.monotonic()
            return False
        kept.jobs, kept.job, kept.returning, kept.since = kept.jobs + 1, None, None, time.monotonic()
        return True

    def _may_stay(self, kept: KeptDriver) -> bool:
        cluster = self._cluster(kept.cluster)
        if cluster.reuse == "never" or kept.needs is None or kept.needs.code is None:
            return False
        if kept.needs.code and cluster.reuse != "function":
            return False
        if kept.jobs + 1 >= cluster.max_jobs:
            return False
        return not kept.free.is_set() or kept.driver.group.memory_bytes() <= cluster.reuse_memory_bytes

    def forget(self, driver: Driver) -> None:
        """Forget a driver that was ended with its job."""
        self._kept = [kept for kept in self._kept if kept.driver is not driver]

    def round(self) -> None:
        """End the drivers that should not wait any more, and start those that should."""
        self._leaving = [(since, driver) for since, driver in self._leaving if not self._has_left(since, driver)]
        for kept in [kept for kept in self._kept if kept.job is None]:
            if kept.gone.is_set():
                self._lost(kept)
        for name in self.launcher.config.cluster_names:
            if name != EXTERNAL:
                self._end_idle(name)
                self._start_missing(name)

    def close(self) -> None:
        """End the drivers that wait; those that run a job end after it."""
        waiting = [kept.driver for kept in self._kept if kept.job is None]
        for kept in self._kept:
            if kept.driver.channel is not None:
                kept.driver.channel.close()
        leaving = [*waiting, *(driver for _, driver in self._leaving)]
        # A driver that ends by itself removes Spark's temporary folders. Its JVM may take longer to end than Python.
        until = time.monotonic() + _CLOSE_SECONDS
        while time.monotonic() < until and any(driver.exit_code() is None for driver in leaving):
            time.sleep(0.05)
        for driver in leaving:
            if not driver.group.leader_alive or not self.launcher.end_waiting(driver):
                self.launcher.delete_driver(driver)
        self._kept, self._leaving = [], []

    def _of(self, cluster: str) -> Iterator[KeptDriver]:
        return (kept for kept in self._kept if kept.cluster == cluster)

    def _cluster(self, name: str) -> Cluster:
        return self.launcher.config.cluster(name)

    def _end_idle(self, name: str) -> None:
        cluster = self._cluster(name)
        waiting = sorted((kept for kept in self._of(name) if kept.waits), key=lambda kept: -kept.since)
        for place, kept in enumerate(waiting):
            reason = self._reason_to_end(kept, cluster, place)
            if reason is not None:
                self._retire(kept, reason)

    def _reason_to_end(self, kept: KeptDriver, cluster: Cluster, place: int) -> str | None:
        """``place`` is 0 for the driver that has waited for the shortest time."""
        if kept.is_stale(self.launcher):
            return "the configuration or the installed packages have changed"
        if place >= max(1, cluster.standby) and time.monotonic() - kept.since > _SURPLUS_SECONDS:
            return "enough others wait"
        if place >= cluster.standby and time.monotonic() - kept.since > cluster.idle_seconds:
            return f"it had no job for {cluster.idle_seconds:g} s"
        return None

    def _retire(self, kept: KeptDriver, reason: str) -> None:
        """Tell a driver to end. One that has a job is watched, and killed, with its job."""
        log.info("Driver %d ends: %s", kept.driver.group.pid, reason)
        self.forget(kept.driver)
        if kept.driver.channel is not None:
            kept.driver.channel.close()
        if kept.job is None:
            self._leaving.append((time.monotonic(), kept.driver))

    def _has_left(self, since: float, driver: Driver) -> bool:
        if driver.exit_code() is None and time.monotonic() - since < _LEAVE_SECONDS:
            return False
        return self.launcher.end_waiting(driver)

    def _lost(self, kept: KeptDriver) -> None:
        """Clear up after a driver that died while it waited."""
        words = self.launcher.logs.last_lines_of(kept.driver.folder / OWN_LOG) if kept.driver.folder else ""
        log.warning("A waiting driver (process %d) is gone. Its log ends: %s", kept.driver.group.pid, words)
        self.forget(kept.driver)
        self._leaving.append((0.0, kept.driver))
        if not kept.jobs:
            _, pause = self._pauses.get(kept.cluster, (0.0, _FIRST_PAUSE_SECONDS / 2))
            pause = min(_LONGEST_PAUSE_SECONDS, pause * 2)
            self._pauses[kept.cluster] = (time.monotonic() + pause, pause)

    def _start_missing(self, name: str) -> None:
        cluster, now = self._cluster(name), time.monotonic()
        if not cluster.standby or now < self._pauses.get(name, (0.0, 0.0))[0]:
            return
        there = sum(kept.waits or now - kept.since < _REPLACE_SECONDS for kept in self._of(name))
        for _ in range(cluster.standby - there):
            try:
                self.add(self.launcher.start_waiting(name), name, None)
            except (LaunchError, OSError) as error:
                log.error("No driver can wait for jobs of cluster %r: %s", name, error)
                self._pauses[name] = (now + _LONGEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
                return

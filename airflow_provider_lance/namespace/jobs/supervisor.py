"""The loop that launches jobs, cancels those nobody waits for, ends dead drivers, and takes over from dead servers.

Each server has one such thread. A round is a few indexed queries, and a submit or a cancel starts one at once. Every
decision is a conditional update of the registry, so rounds of several servers may overlap.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Collection

from airflow_provider_lance.api.job_states import EXTERNAL, LIVE_STATES, JobState
from airflow_provider_lance.namespace.config import ConfigError
from airflow_provider_lance.namespace.jobs.database import RegistryUnavailableError, jobs, now_ms
from airflow_provider_lance.namespace.jobs.driver_pool import AttemptKey, Choice, DriverPool, Needs
from airflow_provider_lance.namespace.jobs.executions import Executions, Launch
from airflow_provider_lance.namespace.jobs.launcher import Driver, Launcher, LaunchError
from airflow_provider_lance.namespace.jobs.registry import JobRow, Registry, Stage
from airflow_provider_lance.namespace.jobs.server_leases import Servers
from airflow_provider_lance.system.process_groups import ProcessGroup, host_name

log = logging.getLogger(__name__)

NOBODY_WAITS = "nobody waits: the lease of whoever submitted this job ran out"
_HOUSEKEEPING_SECONDS = 3600.0
_WITH_DRIVER = frozenset({Stage.LAUNCHED.value, Stage.CLAIMED.value})
# A driver that is gone can have one or two last reports that are not stored yet.
_LAST_REPORTS = 5
# A driver that has reported its end may take this long to close its Spark session.
_CLOSING_MS = 10_000


class Supervisor:
    """Looks after the jobs of one server. Tests call :meth:`round` instead of starting the thread."""

    def __init__(self, registry: Registry, executions: Executions, launcher: Launcher) -> None:
        self.registry = registry
        self.executions = executions
        self.servers = Servers(executions.database, executions.server_id, executions.timings)
        self.launcher = launcher
        self.pool = DriverPool(launcher, self.wake)
        self._drivers: dict[tuple[str, int], Driver] = {}
        self._started_ms = now_ms()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lance-jobs", daemon=True)
        self._next_renewal = 0.0
        self._next_housekeeping = 0.0
        self.last_round = time.monotonic()

    def start(self) -> None:
        me = ProcessGroup.of(os.getpid())
        self._started_ms = now_ms()
        self.servers.register(host_name(), me.to_dict(), self.launcher.namespace_url)
        self.launcher.delete_left_folders()
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """Stop the thread. Drivers with a job go on, and the next server on this registry takes them over."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
            self.pool.close()
            with contextlib.suppress(RegistryUnavailableError):  # The lease of this server ends by itself.
                self.servers.stop()

    @property
    def drivers(self) -> int:
        """How many drivers this server has started or taken over, without those that wait for a job."""
        return len(self._drivers)

    @property
    def healthy(self) -> bool:
        longest = 30 + 10 * self.executions.timings.round_interval
        return self._thread.is_alive() and time.monotonic() - self.last_round < longest

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            try:
                self.round()
            except Exception:
                # The database may be unavailable for a while, so the next round tries again.
                log.exception("A round of looking after the jobs failed; trying again")
            self._wake.wait(self.executions.timings.round_interval)

    def round(self) -> None:
        """Do each step once, in an order in which one step makes work for the next."""
        if time.monotonic() >= self._next_renewal:
            self.servers.renew()
            self._next_renewal = time.monotonic() + self.executions.timings.server_lease / 4
        self._cancel_unwanted()
        self._take_over()
        self._check_drivers()
        self._kill_cancelled()
        self._end_overdue()
        self._launch_waiting()
        if not self._stop.is_set():  # Nobody would end a driver that is started now.
            self.pool.round()
        self._delete_old_jobs()
        self.last_round = time.monotonic()

    def _cancel_unwanted(self) -> None:
        now = now_ms()
        for job_id in self.registry.nobody_waits(self._started_ms, now):
            self.registry.cancel(job_id, NOBODY_WAITS, only_if=jobs.c.waiter_until_ms < now)

    def _launch_waiting(self) -> None:
        free = {
            name: self.launcher.config.cluster(name).max_drivers
            for name in self.launcher.config.cluster_names
            if name != EXTERNAL
        }
        running: set[AttemptKey] = set()
        for row in self.executions.running_here():
            running.add((row.job_id, row.attempt))
            if row.cluster in free:
                free[row.cluster] -= 1
        while open_clusters := [name for name, drivers in free.items() if drivers > 0]:
            rows = self.executions.waiting(open_clusters, limit=sum(free[name] for name in open_clusters))
            if not rows:
                return
            launched = False
            for row in rows:
                if free[row.cluster] > 0 and not self._stop.is_set() and self._launch(row, running):
                    running.add((row.job_id, row.attempt + 1))
                    free[row.cluster] -= 1
                    launched = True
            if self._stop.is_set() or not launched:
                return

    def _launch(self, row: JobRow, running: Collection[AttemptKey]) -> bool:
        """Give a job to a driver that waits, or start one; False if another server has the job, or a driver is late."""
        try:
            needs = self.pool.needs_of(row)
            choice = self.pool.choose(row, needs, running)
        except ConfigError:  # The environment is no longer configured, which the start below says.
            needs, choice = Needs(row.cluster, row.environment, None, ""), Choice()
        if choice.soon:
            return False
        reference = None if choice.kept is None else choice.kept.driver.group.to_dict()
        launch = self.executions.begin_launch(row.job_id, row.attempt, choice.path, choice.message, reference)
        if launch is None:
            return False
        if choice.kept is None:
            self._start(launch, needs)
            return True
        self._drivers[launch.job_id, launch.attempt] = choice.kept.driver
        if self.pool.assign(choice.kept, launch, needs):
            log.info("Job %s has driver %d, which was waiting", launch.job_id, choice.kept.driver.group.pid)
        else:
            self._end_driver((launch.job_id, launch.attempt), choice.kept.driver)
            self._not_launched(launch, "The driver that was waiting is gone.", final=False)
        return True

    def _start(self, launch: Launch, needs: Needs) -> None:
        try:
            driver = self.launcher.start(launch)
        except (LaunchError, ConfigError) as error:
            self._not_launched(launch, str(error), final=True)
            return
        except Exception as error:  # A disk may be full, for example, and have space at the next attempt.
            log.exception("Attempt %d of job %s cannot be launched", launch.attempt, launch.job_id)
            self._not_launched(launch, f"The driver cannot be started: {error or type(error).__name__}.", final=False)
            return
        self._drivers[launch.job_id, launch.attempt] = driver
        self.pool.started(driver, launch, needs)
        self.executions.started(launch, driver.group.to_dict())
        log.info("Launched attempt %d of job %s (process %d)", launch.attempt, launch.job_id, driver.group.pid)

    def _not_launched(self, launch: Launch, why: str, *, final: bool) -> None:
        log.error("Job %s cannot be launched: %s", launch.job_id, why)
        row = self.registry.get(launch.job_id)
        if row is not None and row.attempt == launch.attempt:
            self.executions.driver_died(row, why, final=final)

    def _check_drivers(self) -> None:
        """Find drivers that exited without a result or whose job has ended, and bound the logs of the others."""
        if not self._drivers:
            return
        rows = {(row.job_id, row.attempt): row for row in self.executions.running_here()}
        for key, driver in list(self._drivers.items()):
            row = rows.get(key)
            code = driver.exit_code()
            if row is None:
                self._end_driver_without_job(key, driver, code)
            elif code is not None:
                self._end_driver(key, driver)
                if self._driver_is_child(row) or (code > 0 and row.stage == Stage.LAUNCHED.value):
                    self._died(row, _exit_sentence(code), gone=self._driver_is_child(row))
            else:
                self.launcher.logs.bound(*key)

    def _end_driver_without_job(self, key: tuple[str, int], driver: Driver, code: int | None) -> None:
        """End a driver whose attempt is over. The driver of a job that another server took over is left alone."""
        job_id, attempt = key
        row = self.registry.get(job_id)
        if code is None and self._is_over(key, row) and self.pool.take_back(key, row, self.executions.server_id):
            self._drivers.pop(key)
            self.launcher.delete_files(job_id, attempt)
            return
        if row is not None and row.attempt == attempt and JobState(row.state) in LIVE_STATES and code is None:
            if row.server_id is None:  # The job waits for its next attempt.
                self._end_driver(key, driver)
            return
        reported_ms = row.finished_ms if row is not None and row.claim_hash is not None else None
        if code is None and reported_ms is not None and now_ms() - reported_ms < _CLOSING_MS:
            return
        self._end_driver(key, driver)

    @staticmethod
    def _is_over(key: tuple[str, int], row: JobRow | None) -> bool:
        return row is None or row.attempt != key[1] or JobState(row.state) not in LIVE_STATES

    def _kill_cancelled(self) -> None:
        for row in self.executions.cancelling():
            key = (row.job_id, row.attempt)
            driver = self._drivers.get(key)
            if driver is not None and self._driver_is_child(row) and self._end_driver(key, driver):
                self._end_attempt(row, "its driver was killed", gone=True)

    def _end_overdue(self) -> None:
        for row in self.executions.overdue(self._started_ms):
            if row.server_id not in (None, self.executions.server_id):
                continue  # The server that launched it decides, or the one that takes over from it.
            key = (row.job_id, row.attempt)
            driver = self._drivers.get(key) or _known_driver(row)
            if driver is not None and self._has_another_job(key, driver):
                driver = None
            gone = driver is not None and driver.group.here and self._end_driver(key, driver)
            if driver is not None and driver.group.here and not gone:
                log.warning("The driver of job %s cannot be killed; its claim is withdrawn all the same", row.job_id)
            if row.stage == Stage.CLAIMED.value:
                why = f"The driver did not report for {self.executions.timings.lease:.0f} s."
            else:
                why = "No driver claimed the job before its launch deadline."
            self._died(row, why, gone=gone and self._driver_is_child(row))

    def _take_over(self) -> None:
        """Take over the jobs of servers that are gone, with their drivers where those still run on this machine."""
        now = now_ms()
        for row in self.servers.orphans():
            process = ProcessGroup.from_dict(row.server_process)
            dead_here = process is not None and process.here and not process.leader_alive
            if not (row.server_stopped or dead_here or row.server_lease_until_ms < now):
                continue
            if not self.servers.adopt(row):
                continue
            log.info("Took over job %s from server %s", row.job_id, row.server_id)
            driver = _known_driver(row) or self.launcher.find(row.job_id, row.attempt)
            if driver is not None and driver.group.here:
                self._drivers[row.job_id, row.attempt] = driver
            elif driver is None and dead_here and row.stage == Stage.LAUNCHED.value and self._driver_is_child(row):
                self._died(row, "The server stopped before it had started the driver.")

    def _delete_old_jobs(self) -> None:
        if time.monotonic() < self._next_housekeeping:
            return
        self._next_housekeeping = time.monotonic() + _HOUSEKEEPING_SECONDS
        keep_ms = int(self.launcher.config.limits.keep_days * 24 * 3600 * 1000)
        while deleted := self.registry.delete_ended(now_ms() - keep_ms):
            for job_id in deleted:
                self.launcher.delete_logs(job_id)

    def _died(self, row: JobRow, why: str, *, gone: bool = False) -> None:
        words = self.launcher.logs.last_lines(row.job_id, row.attempt)
        message = f"{why} Its log ends: {words}" if words else why
        log.warning("Job %s, attempt %d: %s", row.job_id, row.attempt, message)
        self._end_attempt(row, message, gone=gone)

    def _end_attempt(self, row: JobRow, message: str, *, gone: bool) -> None:
        """End the attempt of this row, which has no result.

        A driver that has reported since the row was read is alive, so its attempt goes on. If the driver is ``gone``,
        the report came from before its end, and another one may still be on its way into the database.
        """
        for _ in range(_LAST_REPORTS):
            fresh = self.registry.get(row.job_id)
            if fresh is None or fresh.attempt != row.attempt or fresh.stage not in _WITH_DRIVER:
                return
            if not gone and (fresh.stage, fresh.last_seq) != (row.stage, row.last_seq):
                return
            if self.executions.driver_died(fresh, message) or not gone:
                return

    def _has_another_job(self, key: tuple[str, int], driver: Driver) -> bool:
        """Whether a driver that was chosen for a job and never heard of it has got another one since."""
        others = [other.group.pid for at, other in self._drivers.items() if at != key]
        return key not in self._drivers and driver.group.pid in others

    def _end_driver(self, key: tuple[str, int], driver: Driver) -> bool:
        gone = self.launcher.end(*key, driver)
        if gone:
            self._drivers.pop(key, None)
            self.pool.forget(driver)
        return gone

    def _driver_is_child(self, row: JobRow) -> bool:
        try:
            return self.launcher.config.cluster(row.cluster).driver_is_child
        except ConfigError:
            return True  # The cluster is no longer configured, so the process that was started is all that is known.


def _known_driver(row: JobRow) -> Driver | None:
    group = ProcessGroup.from_dict(row.launcher_ref)
    return None if group is None else Driver(group)


def _exit_sentence(code: int) -> str:
    if code < -1:
        return f"The driver was killed by signal {-code}."
    return "The driver is gone." if code == -1 else f"The driver exited with code {code} without a result."

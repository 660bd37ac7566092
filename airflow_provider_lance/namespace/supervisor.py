"""The loop that keeps jobs moving: launches what waits, ends what nobody waits for, gives up dead drivers, takes over.

One thread per server. A round is a handful of indexed queries, and a submit or a cancel wakes it at once. Every
decision is settled by the registry's conditional updates, so rounds of several servers may overlap.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import Any

from sqlalchemy import Row

from airflow_provider_lance.api.job_words import LIVE_STATES, JobState
from airflow_provider_lance.namespace.config import ConfigError
from airflow_provider_lance.namespace.database import RegistryUnavailableError, jobs, now_ms
from airflow_provider_lance.namespace.executions import Executions, Launch
from airflow_provider_lance.namespace.launcher import Driver, Launcher, LaunchError
from airflow_provider_lance.namespace.processes import ProcessGroup, host_name
from airflow_provider_lance.namespace.registry import EXTERNAL, Registry, Stage
from airflow_provider_lance.namespace.servers import Servers

log = logging.getLogger(__name__)

NOBODY_WAITS = "nobody waits: the lease of whoever submitted this job ran out"
_HOUSEKEEPING_SECONDS = 3600.0
_WITH_DRIVER = frozenset({Stage.LAUNCHED.value, Stage.CLAIMED.value})
_LAST_REPORTS = 5  # of one driver on their way into the database at once: there are one or two


class Supervisor:
    def __init__(
        self, registry: Registry, executions: Executions, launcher: Launcher, *, interval: float = 1.0
    ) -> None:
        self.registry = registry
        self.executions = executions
        self.servers = Servers(executions.database, executions.server_id, executions.timings)
        self.launcher = launcher
        self.interval = interval
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
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """Stop looking after jobs. Drivers go on: the next server on this registry adopts them."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
            with contextlib.suppress(RegistryUnavailableError):  # our lease ends by itself
                self.servers.stop()

    @property
    def drivers(self) -> int:
        """How many driver processes this server looks after."""
        return len(self._drivers)

    @property
    def healthy(self) -> bool:
        return self._thread.is_alive() and time.monotonic() - self.last_round < 30 + 10 * self.interval

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            try:
                self.round()
            except Exception:
                # The database may be away for a while; the next round finds out.
                log.exception("A round of looking after the jobs failed; trying again")
            self._wake.wait(self.interval)

    def round(self) -> None:
        """Everything once, in the order in which one step makes work for the next."""
        if time.monotonic() >= self._next_renewal:
            self.servers.renew()
            self._next_renewal = time.monotonic() + self.executions.timings.server_lease / 4
        self._end_unwanted()
        self._take_over()
        self._watch_drivers()
        self._kill_cancelled()
        self._give_up_overdue()
        self._launch_waiting()
        self._keep_house()
        self.last_round = time.monotonic()

    def _end_unwanted(self) -> None:
        now = now_ms()
        for job_id in self.registry.nobody_waits(self._started_ms, now):
            self.registry.cancel(job_id, NOBODY_WAITS, only_if=jobs.c.waiter_until_ms < now)

    def _launch_waiting(self) -> None:
        room = {
            name: self.launcher.config.cluster(name).max_drivers
            for name in self.launcher.config.cluster_names
            if name != EXTERNAL
        }
        for row in self.executions.running_here():
            if row.cluster in room:
                room[row.cluster] -= 1
        while open_clusters := [name for name, places in room.items() if places > 0]:
            rows = self.executions.waiting(open_clusters, limit=sum(room[name] for name in open_clusters))
            if not rows:
                return
            for row in rows:
                if room[row.cluster] > 0 and not self._stop.is_set():
                    launch = self.executions.begin_launch(row.job_id, row.attempt)
                    if launch is not None:
                        self._start(launch)
                        room[row.cluster] -= 1
            if self._stop.is_set():
                return

    def _start(self, launch: Launch) -> None:
        try:
            driver = self.launcher.start(launch)
        except (LaunchError, ConfigError) as error:
            self._not_launched(launch, str(error), final=True)
            return
        except Exception as error:  # a full disk, say: the next attempt may find it otherwise, and so may the next job
            log.exception("Attempt %d of job %s cannot be launched", launch.attempt, launch.job_id)
            self._not_launched(launch, f"The driver cannot be started: {error or type(error).__name__}.", final=False)
            return
        self._drivers[launch.job_id, launch.attempt] = driver
        self.executions.started(launch, driver.group.to_dict())
        log.info("Launched attempt %d of job %s (process %d)", launch.attempt, launch.job_id, driver.group.pid)

    def _not_launched(self, launch: Launch, why: str, *, final: bool) -> None:
        log.error("Job %s cannot be launched: %s", launch.job_id, why)
        row = self.registry.get(launch.job_id)
        if row is not None and row.attempt == launch.attempt:
            self.executions.driver_died(row, why, final=final)

    def _watch_drivers(self) -> None:
        """Drivers that exited without a result, jobs that ended while their driver goes on, logs that grow."""
        if not self._drivers:
            return
        rows = {(row.job_id, row.attempt): row for row in self.executions.running_here()}
        for key, driver in list(self._drivers.items()):
            row = rows.get(key)
            code = driver.exit_code()
            if row is None:
                self._retire(key, driver, code)
            elif code is not None:
                self._end(key, driver)
                if self._driver_is_child(row) or (code > 0 and row.stage == Stage.LAUNCHED.value):
                    self._died(row, _exit_words(code), gone=self._driver_is_child(row))
            else:
                self.launcher.logs.bound(*key)

    def _retire(self, key: tuple[str, int], driver: Driver, code: int | None) -> None:
        """A driver without a live attempt of ours: told to stop, ended, or taken over by another server."""
        job_id, attempt = key
        row = self.registry.get(job_id)
        if row is not None and row.attempt == attempt and JobState(row.state) in LIVE_STATES and code is None:
            if row.server_id is None:
                self._end(key, driver)  # given up
            return
        ended_ms = row.finished_ms if row is not None else None
        # A driver that has reported its end still closes its Spark session; one that was cut off has nothing to do.
        polite = row is not None and row.claim_hash is not None and ended_ms is not None
        if code is None and polite and now_ms() - (ended_ms or 0) < 10_000:
            return
        self._end(key, driver)

    def _kill_cancelled(self) -> None:
        for row in self.executions.cancelling():
            key = (row.job_id, row.attempt)
            driver = self._drivers.get(key)
            if driver is not None and self._driver_is_child(row) and self._end(key, driver):
                self._conclude(row, "its driver was killed", gone=True)

    def _give_up_overdue(self) -> None:
        for row in self.executions.overdue(self._started_ms):
            if row.server_id not in (None, self.executions.server_id):
                continue  # its own server decides, or whoever takes over from it
            key = (row.job_id, row.attempt)
            driver = self._drivers.get(key) or _known_driver(row)
            gone = driver is not None and driver.group.here and self._end(key, driver)
            if driver is not None and driver.group.here and not gone:
                log.warning("The driver of job %s cannot be killed; its claim is withdrawn all the same", row.job_id)
            if row.stage == Stage.CLAIMED.value:
                why = f"The driver did not report for {self.executions.timings.lease:.0f} s."
            else:
                why = "No driver claimed the job before its launch deadline."
            self._died(row, why, gone=gone and self._driver_is_child(row))

    def _take_over(self) -> None:
        """Jobs of servers that are gone: adopt them, with their drivers where those still run on this machine."""
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

    def _keep_house(self) -> None:
        if time.monotonic() < self._next_housekeeping:
            return
        self._next_housekeeping = time.monotonic() + _HOUSEKEEPING_SECONDS
        keep_ms = int(self.launcher.config.limits.keep_days * 24 * 3600 * 1000)
        while gone := self.registry.forget_ended(now_ms() - keep_ms):
            for job_id in gone:
                self.launcher.forget(job_id)

    def _died(self, row: Row[Any], why: str, *, gone: bool = False) -> None:
        words = self.launcher.logs.last_lines(row.job_id, row.attempt)
        message = f"{why} Its log ends: {words}" if words else why
        log.warning("Job %s, attempt %d: %s", row.job_id, row.attempt, message)
        self._conclude(row, message, gone=gone)

    def _conclude(self, row: Row[Any], message: str, *, gone: bool) -> None:
        """End the attempt of this row. A driver that reported since lives; one that is ``gone`` had only been faster
        than our look at its row, and its last report may still be on its way into the database."""
        for _ in range(_LAST_REPORTS):
            fresh = self.registry.get(row.job_id)  # with what a report or a takeover changed since
            if fresh is None or fresh.attempt != row.attempt or fresh.stage not in _WITH_DRIVER:
                return
            if not gone and (fresh.stage, fresh.last_seq) != (row.stage, row.last_seq):
                return
            if self.executions.driver_died(fresh, message) or not gone:
                return

    def _end(self, key: tuple[str, int], driver: Driver) -> bool:
        gone = self.launcher.end(*key, driver)
        if gone:
            self._drivers.pop(key, None)
        return gone

    def _driver_is_child(self, row: Row[Any]) -> bool:
        try:
            return self.launcher.config.cluster(row.cluster).driver_is_child
        except ConfigError:
            return True  # its cluster left the configuration; the process we know is all there is


def _known_driver(row: Row[Any]) -> Driver | None:
    group = ProcessGroup.from_dict(row.launcher_ref)
    return None if group is None else Driver(group)


def _exit_words(code: int) -> str:
    if code < -1:
        return f"The driver was killed by signal {-code}."
    return "The driver is gone." if code == -1 else f"The driver exited with code {code} without a result."

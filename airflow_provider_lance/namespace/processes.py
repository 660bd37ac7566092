"""Process groups that outlive us: how a driver started by an earlier server is recognised, and killed for sure.

A pid alone proves nothing after a restart, so a group is known by its leader's pid, that process's start time and
the machine's boot. Killing the JVM alone would leave the Python driver alive: only whole groups are killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
# The server's own secrets. A driver reaches the server by the token in its file, and a worker process needs neither.
_SECRETS = frozenset({"LANCE_REGISTRY", "LANCE_API_KEY", "LANCE_BEARER_TOKEN"})


def environment_without_secrets() -> dict[str, str]:
    """This process's environment, for a child that runs users' functions or SQL."""
    return {name: value for name, value in os.environ.items() if name not in _SECRETS}


@dataclass(frozen=True)
class ProcessGroup:
    """One group on one machine since one boot. ``mark`` is a piece of its members' environment."""

    host: str
    boot: str
    pid: int
    started: str
    mark: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> ProcessGroup | None:
        if not data or not {"host", "boot", "pid", "started"} <= set(data):
            return None
        return cls(
            str(data["host"]), str(data["boot"]), int(data["pid"]), str(data["started"]), str(data.get("mark", ""))
        )

    @classmethod
    def of(cls, pid: int, mark: str = "") -> ProcessGroup:
        return cls(host_name(), boot_id(), pid, start_time(pid) or "", mark)

    @property
    def here(self) -> bool:
        return self.host == host_name() and self.boot == boot_id()

    @property
    def leader_alive(self) -> bool:
        return self.here and bool(self.started) and start_time(self.pid) == self.started

    @property
    def alive(self) -> bool:
        """Whether any member is left. False also when it lived on another machine or before a reboot: ask ``here``."""
        return self.here and (self.leader_alive or self._remains())

    def kill(self, wait: float = 2.0) -> bool:
        """Kill every member; True once none is left."""
        if not self.here:
            return False
        until = time.monotonic() + wait
        while self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def _remains(self) -> bool:
        """Members whose leader is gone. The group's id cannot be given away while one of them lives, but it may
        have been before: so one of them must carry our mark."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        if not _PROC.is_dir():
            return not start_time(self.pid)
        mark = self.mark.encode()
        for entry in _PROC.iterdir():
            if not entry.name.isdigit():
                continue
            fields = _stat(int(entry.name))
            if fields is None or fields[0] in "ZX" or int(fields[2]) != self.pid:
                continue
            try:
                if not mark or mark in (entry / "environ").read_bytes():
                    return True
            except OSError:
                continue
        return False


def find_group(mark: str) -> ProcessGroup | None:
    """The group of a living process that carries this mark, for a group whose start nobody could write down."""
    for pid in find_processes(mark):
        fields = _stat(pid)
        if fields is not None:
            return ProcessGroup.of(int(fields[2]), mark)
    return None


def find_processes(mark: str, sessions: Collection[int] = ()) -> Iterator[int]:
    """Living processes that carry this mark in their environment, or belong to one of these sessions.

    Airflow's processes give themselves a title, which overwrites the environment the system shows: only their
    session still tells whose they are.
    """
    wanted = mark.encode() + b"\0"
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        fields = _stat(int(entry.name)) if entry.name.isdigit() else None
        if fields is None or fields[0] in "ZX":
            continue
        try:
            if int(fields[3]) in sessions or wanted in (entry / "environ").read_bytes():
                yield int(entry.name)
        except OSError:
            continue


@cache
def host_name() -> str:
    return socket.gethostname()


@cache
def boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def start_time(pid: int) -> str | None:
    """When that process started, as the system counts it; None if there is no such living process."""
    if _PROC.is_dir():
        fields = _stat(pid)
        return None if fields is None or fields[0] in "ZX" else fields[19]
    answer = subprocess.run(  # noqa: S603
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    status, _, started = answer.stdout.strip().partition(" ")
    return started.strip() or None if status and not status.startswith("Z") else None


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/pid/stat after the name, which may hold anything: state, ppid, pgrp, … start time (20th)."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None

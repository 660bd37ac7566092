"""Process groups that outlive the process that started them. A later server can recognise and kill them.

The system reuses pids, so a group is identified by its leader's pid, the start time of that process and the boot of
the machine. Killing the JVM alone would leave the Python driver alive, so only whole groups are killed.
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

_PROC = Path("/proc")
# The server's own secrets. A driver has a token in its private file, and a worker process needs no secret.
_SECRETS = frozenset(
    {"LANCE_REGISTRY", "LANCE_API_KEY", "LANCE_BEARER_TOKEN", "LANCE_SECRETS_KEY", "LANCE_SECRETS_KEY_FILE"}
)


def environment_without_secrets() -> dict[str, str]:
    """This process's environment, for a child that runs users' functions or SQL."""
    return {name: value for name, value in os.environ.items() if name not in _SECRETS}


@dataclass(frozen=True)
class ProcessGroup:
    """One group on one machine since one boot. ``mark`` is an entry in the environment of its members."""

    host: str
    boot: str
    pid: int
    started: str
    mark: str = ""

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object] | None) -> ProcessGroup | None:
        if not data or not {"host", "boot", "pid", "started"} <= set(data):
            return None
        pid = int(str(data["pid"]))
        return cls(str(data["host"]), str(data["boot"]), pid, str(data["started"]), str(data.get("mark", "")))

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
        """Whether any member is left on this machine; False for a group of another machine or another boot."""
        return self.here and (self.leader_alive or self._remains())

    def kill(self, wait: float = 2.0) -> bool:
        """Kill every member; return True once none is left."""
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

    def memory_bytes(self) -> int:
        """The memory of all members; pages that several of them share are counted once. 0 where it is not known."""
        total = 0
        for entry in _PROC.iterdir() if self.here and _PROC.is_dir() else ():
            fields = _stat(int(entry.name)) if entry.name.isdigit() else None
            if fields is not None and int(fields[2]) == self.pid:
                with contextlib.suppress(OSError, ValueError, IndexError):
                    lines = (entry / "smaps_rollup").read_text().splitlines()
                    total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10
        return total

    def _remains(self) -> bool:
        """Whether a group has members although its leader is gone.

        The system may have reused the id of a group whose members are all gone, so one of them must have the mark.
        """
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
    """The group of a living process with this mark, for a group whose identity was never stored."""
    for pid in find_processes(mark):
        fields = _stat(pid)
        if fields is not None:
            return ProcessGroup.of(int(fields[2]), mark)
    return None


def find_processes(mark: str, sessions: Collection[int] = ()) -> Iterator[int]:
    """Living processes that have this mark in their environment, or belong to one of these sessions.

    A process that sets its own title, as Airflow's do, overwrites the environment that the system shows. It can be
    found by its session only.
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
    """When that process started, as the system writes it; None if there is no such living process."""
    if _PROC.is_dir():
        fields = _stat(pid)
        return None if fields is None or fields[0] in "ZX" else fields[19]
    answer = subprocess.run(  # noqa: S603
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    status, _, started = answer.stdout.strip().partition(" ")
    return started.strip() or None if status and not status.startswith("Z") else None


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/pid/stat after the name, which may have any characters: state, ppid, pgrp, session, …"""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None

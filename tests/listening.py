"""The addresses on which processes listen, as the kernel tells it. Linux only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_LISTEN = "0A"
#: Addresses of this machine as the kernel writes them: 127.0.0.1, ::1, and 127.0.0.1 in a socket for both families.
_LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def listening(pids: Iterable[int]) -> dict[int, str]:
    """Port → ``loopback`` or the address as the kernel writes it, of each TCP socket these processes listen on."""
    inodes = {inode for pid in pids for inode in _socket_inodes(pid)}
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            local, state, inode = (line.split()[field] for field in (1, 3, 9))
            if state == _LISTEN and inode in inodes:
                address, _, port = local.partition(":")
                found[int(port, 16)] = "loopback" if address in _LOOPBACK else address
    return found


def _socket_inodes(pid: int) -> Iterable[str]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    yield target[8:-1]

"""A channel between a server and a driver that it started: JSON lines over a pair of connected sockets.

The sockets have no address, so nobody else can connect to them. A process learns from the end of the stream that the
other one is gone.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections.abc import Mapping

_MOST_BYTES = 1 << 20


class Channel:
    """One end of the pair. One thread may send while another one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = b""

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """A channel for this process, and the other end for the child that inherits it."""
        here, there = socket.socketpair()
        return cls(here), there

    @classmethod
    def of_descriptor(cls, descriptor: int) -> Channel:
        """The channel of a child; its own children do not inherit it."""
        end = socket.socket(fileno=descriptor)
        end.set_inheritable(False)
        return cls(end)

    def send(self, message: Mapping[str, object]) -> bool:
        """Send a message; False if nobody can receive it any more."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, object] | None:
        """The next message, for which this waits; None once the other end is closed."""
        while b"\n" not in self._received:
            try:
                more = self._socket.recv(1 << 16)
            except OSError:
                return None
            if not more or len(self._received) > _MOST_BYTES:
                return None
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, object] = json.loads(line)
        return message

    def wait(self, seconds: float) -> bool:
        """Whether :meth:`receive` has something to return within that time."""
        return b"\n" in self._received or bool(select.select([self._socket], [], [], seconds)[0])

    def close(self) -> None:
        """Close both directions. A thread that waits in :meth:`receive` gets None."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

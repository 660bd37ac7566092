"""API keys: random secrets, stored as hashes, with scopes. Who is asking, and may they?

A key is ``lance_<id>_<secret>``: the id finds its row, the hash of the whole is compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Row, insert, select, update

from airflow_provider_lance.api.operations import Scope
from airflow_provider_lance.namespace.database import Database, api_keys, now_ms

_FORM = re.compile(r"lance_([0-9a-f]{12})_[A-Za-z0-9_-]{20,100}")
_REMEMBER_SECONDS = 5.0  # a revoked key stops working at most this much later
_MOST_REMEMBERED = 10_000


class KeyFileError(ValueError):
    """A key file that cannot be used."""


@dataclass(frozen=True)
class Principal:
    """Whoever sent a request, as far as it was proven.

    ``writes`` is the table of a driver's job: the driver commits to it, and has no other business here.
    """

    name: str
    scopes: frozenset[Scope]
    writes: tuple[str, ...] | None = None

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes


ANYBODY = Principal("anybody", frozenset(Scope))


class Keys:
    """The keys of one registry, and those of a file (``scopes:key`` a line), which deployments mount as a secret."""

    def __init__(self, database: Database, file: Path | None = None) -> None:
        self.database = database
        self._from_file = _read_file(file) if file is not None else {}
        self._remembered: dict[str, tuple[float, Principal | None]] = {}
        self._required: tuple[float, bool] = (0.0, False)
        self._lock = threading.Lock()

    def create(self, name: str, scopes: Iterable[Scope]) -> tuple[str, str]:
        """``(id, key)``; the key is shown this once and never again."""
        key_id = secrets.token_hex(6)
        key = f"lance_{key_id}_{secrets.token_urlsafe(32)}"
        with self.database.writing() as connection:
            connection.execute(
                insert(api_keys).values(
                    key_id=key_id,
                    name=name,
                    secret_hash=_hash(key),
                    scopes=",".join(sorted(scope.value for scope in scopes)),
                    created_ms=now_ms(),
                )
            )
        self._forget()
        return key_id, key

    def list(self) -> list[Row[Any]]:
        with self.database.reading() as connection:
            return list(connection.execute(select(api_keys).order_by(api_keys.c.created_ms)))

    def revoke(self, key_id: str) -> bool:
        with self.database.writing() as connection:
            done = connection.execute(
                update(api_keys)
                .where(api_keys.c.key_id == key_id, api_keys.c.revoked_ms.is_(None))
                .values(revoked_ms=now_ms())
            ).rowcount
        self._forget()
        return bool(done)

    def usable(self) -> bool:
        """Whether anybody could authenticate."""
        return bool(self._from_file) or any(row.revoked_ms is None for row in self.list())

    def required(self) -> bool:
        """Whether requests need a key. Revoking the last one locks the door; it does not take it off its hinges."""
        until, value = self._required
        if time.monotonic() >= until:
            value = bool(self._from_file) or bool(self.list())
            self._required = (time.monotonic() + _REMEMBER_SECONDS, value)
        return value

    def remembers(self, key: str | None) -> bool:
        """Whether ``required`` and, for this key, ``find`` will answer without asking the database."""
        now = time.monotonic()
        known = key is None or now < self._remembered.get(_hash(key), (0.0, None))[0]
        return known and now < self._required[0]

    def find(self, key: str) -> Principal | None:
        digest = _hash(key)
        until, principal = self._remembered.get(digest, (0.0, None))
        if time.monotonic() < until:
            return principal
        principal = self._look_up(key, digest)
        with self._lock:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[digest] = (time.monotonic() + _REMEMBER_SECONDS, principal)
        return principal

    def _look_up(self, key: str, digest: str) -> Principal | None:
        for known, principal in self._from_file.items():
            if hmac.compare_digest(known, digest):
                return principal
        form = _FORM.fullmatch(key)
        if form is None:
            return None
        with self.database.reading() as connection:
            row = connection.execute(select(api_keys).where(api_keys.c.key_id == form[1])).one_or_none()
        if row is None or not hmac.compare_digest(row.secret_hash, digest) or row.revoked_ms is not None:
            return None
        return Principal(row.name, parse_scopes(row.scopes))

    def _forget(self) -> None:
        with self._lock:
            self._remembered.clear()
            self._required = (0.0, False)


def parse_scopes(text: str) -> frozenset[Scope]:
    """``read,write,jobs`` or ``all``."""
    words = {word.strip().lower() for word in text.split(",") if word.strip()}
    if words == {"all"}:
        return frozenset(Scope)
    known = {scope.value for scope in Scope}
    if not words or words - known:
        raise ValueError(f"Scopes are {', '.join(sorted(known))}, joined by commas, or all; not {text!r}.")
    return frozenset(Scope(word) for word in words)


def _read_file(path: Path) -> dict[str, Principal]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise KeyFileError(f"The key file {path} cannot be read: {error.strerror}.") from None
    found: dict[str, Principal] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        scopes, separator, key = line.strip().partition(":")
        if not separator or len(key) < 20:
            raise KeyFileError(f"Line {number} of {path} is not `scopes:key` with a key of 20 characters or more.")
        try:
            found[_hash(key)] = Principal(f"{path.name}:{number}", parse_scopes(scopes))
        except ValueError as error:
            raise KeyFileError(f"Line {number} of {path}: {error}") from None
    if not found:
        raise KeyFileError(f"The key file {path} holds no key.")
    return found


def _hash(key: str) -> str:
    # The keys are 256 random bits: nothing to guess, so nothing to slow down.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()

"""API keys: random secrets with scopes, stored as hashes.

A key is ``lance_<id>_<secret>``. The id finds its row, and the hash of the whole key is compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
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
from airflow_provider_lance.namespace.jobs.database import Database, RegistryUnavailableError, api_keys, now_ms

log = logging.getLogger(__name__)

# The columns of ``api_keys``.
_KeyRow = Row[Any]

_FORM = re.compile(r"lance_([0-9a-f]{12})_[A-Za-z0-9_-]{20,100}")
_REMEMBER_SECONDS = 5.0  # a revoked key stops working at most this much later
# Requests about tables do not need the registry. While it is away, the keys that were read last are valid this long.
_REGISTRY_AWAY_SECONDS = 3600.0


class KeyFileError(ValueError):
    """A key file that cannot be used."""


@dataclass(frozen=True)
class Principal:
    """The caller of a request, as far as it was proven.

    ``writes`` is the table of a driver's job. The driver may commit to it and do nothing else.
    """

    name: str
    scopes: frozenset[Scope]
    writes: tuple[str, ...] | None = None

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes


ANYBODY = Principal("anybody", frozenset(Scope))


@dataclass(frozen=True)
class _Snapshot:
    """The registry's keys by their ids, as they were at ``read_at``. They are read again after ``fresh_until``."""

    rows: dict[str, _KeyRow]
    read_at: float
    fresh_until: float


class Keys:
    """The keys of one registry, and those of a file of lines ``scopes:key``, which deployments mount as a secret."""

    def __init__(self, database: Database, file: Path | None = None) -> None:
        self.database = database
        self._from_file = _read_file(file) if file is not None else {}
        self._snapshot: _Snapshot | None = None
        self._reading = threading.Lock()

    def create(self, name: str, scopes: Iterable[Scope]) -> tuple[str, str]:
        """``(id, key)``. The key cannot be shown again, because only its hash is stored."""
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
        self._snapshot = None
        return key_id, key

    def list(self) -> list[_KeyRow]:
        with self.database.reading() as connection:
            return list(connection.execute(select(api_keys).order_by(api_keys.c.created_ms)))

    def revoke(self, key_id: str) -> bool:
        with self.database.writing() as connection:
            done = connection.execute(
                update(api_keys)
                .where(api_keys.c.key_id == key_id, api_keys.c.revoked_ms.is_(None))
                .values(revoked_ms=now_ms())
            ).rowcount
        self._snapshot = None
        return bool(done)

    def usable(self) -> bool:
        """Whether anybody could authenticate."""
        return bool(self._from_file) or any(row.revoked_ms is None for row in self.list())

    def required(self) -> bool:
        """Whether requests need a key. Once a key was created they do, also after the last key was revoked."""
        return bool(self._from_file) or bool(self._registered())

    def remembers(self) -> bool:
        """Whether ``required`` and ``find`` do not have to ask the database."""
        snapshot = self._snapshot
        return snapshot is not None and time.monotonic() < snapshot.fresh_until

    def find(self, key: str) -> Principal | None:
        digest = _hash(key)
        for known, principal in self._from_file.items():
            if hmac.compare_digest(known, digest):
                return principal
        form = _FORM.fullmatch(key)
        if form is None:
            return None
        row = self._registered().get(form[1])
        if row is None or not hmac.compare_digest(row.secret_hash, digest) or row.revoked_ms is not None:
            return None
        return Principal(row.name, parse_scopes(row.scopes))

    def _registered(self) -> dict[str, _KeyRow]:
        """The registry's keys, read at most every few seconds. While it is away, they are those that were read last."""
        known = self._snapshot
        now = time.monotonic()
        if known is not None and now < known.fresh_until:
            return known.rows
        usable = known is not None and now - known.read_at < _REGISTRY_AWAY_SECONDS
        # One request asks the database. The others wait for it only if there are no keys that were read before.
        if self._reading.acquire(blocking=not usable):
            try:
                known = self._read(known if usable else None)
            finally:
                self._reading.release()
        assert known is not None
        return known.rows

    def _read(self, known: _Snapshot | None) -> _Snapshot:
        began = time.monotonic()
        try:
            rows = {row.key_id: row for row in self.list()}
        except RegistryUnavailableError as error:
            if known is None:
                raise
            log.warning("The registry is away (%s): API keys are taken as they were last read.", error)
            snapshot = _Snapshot(known.rows, known.read_at, time.monotonic() + _REMEMBER_SECONDS)
        else:
            snapshot = _Snapshot(rows, began, began + _REMEMBER_SECONDS)
        self._snapshot = snapshot
        return snapshot


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
    # A key has 256 random bits, which cannot be guessed, so a fast hash is enough.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()

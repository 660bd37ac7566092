"""Secrets in the registry's database, encrypted with a key that is never in it.

A value is encrypted together with its name, so that a row that is copied under another name cannot be read. Values are
given to drivers with their claim, and to nobody else.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, TransactionNotFoundError, UnsupportedOperationError
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from airflow_provider_lance.api.ids import DEFAULT_DELIMITER, join_id
from airflow_provider_lance.namespace.job_conflict import JobConflictError
from airflow_provider_lance.namespace.jobs.database import Database, now_ms, stored_secrets
from airflow_provider_lance.namespace.submission import SecretTimes

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

log = logging.getLogger(__name__)

KEY_VARIABLE = "LANCE_SECRETS_KEY"
KEY_FILE_VARIABLE = "LANCE_SECRETS_KEY_FILE"
_LONGEST_VALUE = 64 << 10


@dataclass(frozen=True)
class SecretKeys:
    """Fernet keys: the first one encrypts, and all of them decrypt, so that a key can be replaced."""

    texts: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> SecretKeys:
        """The keys of ``LANCE_SECRETS_KEY``, or of the file that ``LANCE_SECRETS_KEY_FILE`` names."""
        environ = os.environ if environ is None else environ
        text, path = environ.get(KEY_VARIABLE, ""), environ.get(KEY_FILE_VARIABLE)
        if not text and path:
            try:
                text = Path(path).read_text(encoding="utf-8")
            except OSError as error:
                raise ValueError(f"{KEY_FILE_VARIABLE} names {path}, which cannot be read: {error.strerror}.") from None
        return cls(tuple(text.replace(",", " ").split()))

    def cipher(self) -> MultiFernet:
        if not self.texts:
            raise UnsupportedOperationError(
                f"This server has no key for secrets. Start it with {KEY_VARIABLE}, or with {KEY_FILE_VARIABLE} that "
                "names a file; `cryptography.fernet.Fernet.generate_key()` makes a key."
            )
        try:
            from cryptography.fernet import Fernet, MultiFernet
        except ImportError:
            raise UnsupportedOperationError("Secrets need the package cryptography where the server runs.") from None
        try:
            return MultiFernet([Fernet(text) for text in self.texts])
        except ValueError:
            raise UnsupportedOperationError(
                f"The server's {KEY_VARIABLE} is no Fernet key, which is 32 bytes in URL-safe base64."
            ) from None


class SecretStore:
    """A ``SecretRegistry`` over SQL."""

    def __init__(self, database: Database, keys: SecretKeys) -> None:
        self.database = database
        self._keys = keys

    def create(self, secret_id: list[str], value: str) -> None:
        name, now = join_id(secret_id), now_ms()
        values = {"name": name, "value": self._encrypt(name, value), "created_ms": now, "updated_ms": now}
        try:
            with self.database.writing() as connection:
                connection.execute(insert(stored_secrets).values(**values))
        except IntegrityError:
            raise JobConflictError(f"There is a secret {name} already; alter it to replace its value.") from None

    def alter(self, secret_id: list[str], value: str) -> None:
        name = join_id(secret_id)
        values = {"value": self._encrypt(name, value), "updated_ms": now_ms()}
        with self.database.writing() as connection:
            same = stored_secrets.c.name == name
            if connection.execute(update(stored_secrets).where(same).values(**values)).rowcount == 0:
                raise TransactionNotFoundError(f"There is no secret {name}.")

    def find(self, secret_id: list[str]) -> SecretTimes | None:
        query = select(stored_secrets.c.name, stored_secrets.c.created_ms, stored_secrets.c.updated_ms)
        with self.database.reading() as connection:
            row = connection.execute(query.where(stored_secrets.c.name == join_id(secret_id))).one_or_none()
        return None if row is None else SecretTimes(*row)

    def drop(self, secret_id: list[str]) -> bool:
        with self.database.writing() as connection:
            same = stored_secrets.c.name == join_id(secret_id)
            return connection.execute(delete(stored_secrets).where(same)).rowcount > 0

    def listed(self, namespace_id: list[str]) -> list[SecretTimes]:
        query = select(stored_secrets.c.name, stored_secrets.c.created_ms, stored_secrets.c.updated_ms)
        with self.database.reading() as connection:
            rows = [SecretTimes(*row) for row in connection.execute(query.order_by(stored_secrets.c.name))]
        return [row for row in rows if row.name.split(DEFAULT_DELIMITER)[:-1] == namespace_id]

    def values_for(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """The values for the environment variables of a job; those that are gone or cannot be read are left out."""
        if not wanted:
            return {}
        from cryptography.fernet import InvalidToken

        cipher = self._keys.cipher()
        query = select(stored_secrets).where(stored_secrets.c.name.in_(sorted(set(wanted.values()))))
        found: dict[str, str] = {}
        with self.database.reading() as connection:
            for row in connection.execute(query):
                try:
                    content = json.loads(cipher.decrypt(row.value.encode()))
                except InvalidToken:
                    log.error("The secret %s was encrypted with a key that this server does not have", row.name)
                    continue
                if content["name"] == row.name:
                    found[row.name] = content["value"]
        return {variable: found[name] for variable, name in wanted.items() if name in found}

    def _encrypt(self, name: str, value: str) -> str:
        if not value or len(value.encode()) > _LONGEST_VALUE:
            raise InvalidInputError(f"The value of a secret has between 1 and {_LONGEST_VALUE} bytes.")
        return self._keys.cipher().encrypt(json.dumps({"name": name, "value": value}).encode()).decode()

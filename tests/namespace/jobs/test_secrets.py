"""Secrets at rest: encrypted, bound to their names, readable with the key alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError
from sqlalchemy import select, update

from airflow_provider_lance.namespace.jobs.database import Database, sqlite_url, stored_secrets
from airflow_provider_lance.namespace.jobs.secret_store import SecretKeys, SecretStore

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()
VALUE = "hunter2-hunter2"


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(sqlite_url(tmp_path / "registry.db"))


def test_a_value_is_given_to_jobs_and_is_not_in_the_database(database: Database, tmp_path: Path) -> None:
    store = SecretStore(database, SecretKeys((OLD,)))
    store.create(["team", "token"], VALUE)
    assert store.values_for({"A": "team$token", "B": "team$gone"}) == {"A": VALUE}
    assert [row.name for row in store.listed(["team"])] == ["team$token"]
    assert store.listed([]) == []
    with database.reading() as connection:
        assert VALUE not in str(connection.execute(select(stored_secrets)).one())
    for file in tmp_path.iterdir():
        assert VALUE.encode() not in file.read_bytes()


def test_a_key_is_replaced_without_losing_values(database: Database) -> None:
    SecretStore(database, SecretKeys((OLD,))).create(["a"], VALUE)
    both = SecretStore(database, SecretKeys.from_environment({"LANCE_SECRETS_KEY": f"{NEW},{OLD}"}))
    assert both.values_for({"A": "a"}) == {"A": VALUE}
    both.alter(["a"], "second")
    only_new = SecretStore(database, SecretKeys((NEW,)))
    assert only_new.values_for({"A": "a"}) == {"A": "second"}
    assert SecretStore(database, SecretKeys((OLD,))).values_for({"A": "a"}) == {}


def test_a_row_copied_under_another_name_is_not_given(database: Database) -> None:
    store = SecretStore(database, SecretKeys((OLD,)))
    store.create(["mine"], VALUE)
    store.create(["theirs"], "other")
    with database.writing() as connection:
        mine = connection.scalar(select(stored_secrets.c.value).where(stored_secrets.c.name == "mine"))
        connection.execute(update(stored_secrets).where(stored_secrets.c.name == "theirs").values(value=mine))
    assert store.values_for({"A": "theirs"}) == {}


def test_keys_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{NEW}\n")
    assert SecretKeys.from_environment({"LANCE_SECRETS_KEY_FILE": str(file)}).texts == (NEW,)
    assert NEW not in repr(SecretKeys((NEW,)))
    with pytest.raises(ValueError, match="cannot be read"):
        SecretKeys.from_environment({"LANCE_SECRETS_KEY_FILE": str(tmp_path / "none")})


@pytest.mark.parametrize(("texts", "words"), [((), "has no key"), (("short",), "no Fernet key")])
def test_without_a_key_nothing_is_stored(database: Database, texts: tuple[str, ...], words: str) -> None:
    store = SecretStore(database, SecretKeys(texts))
    with pytest.raises(UnsupportedOperationError, match=words):
        store.create(["a"], VALUE)
    assert store.find(["a"]) is None
    with pytest.raises(InvalidInputError, match="between 1 and"):
        SecretStore(database, SecretKeys((OLD,))).create(["a"], "")

"""The database of the jobs: its tables, its migrations, and how a transaction is opened.

``registry.py`` and ``executions.py`` say what the rows mean. The database is a SQLite file in WAL mode by default, or
PostgreSQL. The schema is created and migrated whenever a database is opened.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, InterfaceError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoFreeConnectionError

_metadata = MetaData()
# SQLite numbers rows by itself only where the key's type is spelled INTEGER.
_Number = BigInteger().with_variant(Integer, "sqlite")

schema_version = Table("lance_schema_version", _metadata, Column("version", Integer, nullable=False))

jobs = Table(
    "lance_jobs",
    _metadata,
    # Order of submission: the queue's order and the listing's.
    Column("seq", _Number, primary_key=True, autoincrement=True),
    Column("job_id", String(64), nullable=False, unique=True),
    Column("job_type", String(64), nullable=False),
    Column("table_name", Text, nullable=False),
    Column("state", String(16), nullable=False),
    # One of registry.Stage.
    Column("stage", String(16), nullable=False),
    Column("spec", JSON, nullable=False),
    Column("body_hash", String(64), nullable=False),
    Column("idempotency_key", Text),
    # The same key while a submit with it must find this job; null once the job ends or is being cancelled.
    Column("live_key", Text, unique=True),
    Column("cluster", Text, nullable=False),
    Column("environment", Text),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("finished_ms", BigInteger),
    Column("attempt", Integer, nullable=False, default=0),
    Column("not_before_ms", BigInteger, nullable=False, default=0),
    Column("launch_hash", String(64)),
    Column("launch_deadline_ms", BigInteger),
    Column("launcher_ref", JSON),
    Column("server_id", String(64)),
    Column("claim_hash", String(64), index=True),
    Column("lease_until_ms", BigInteger),
    Column("last_seq", BigInteger, nullable=False, default=-1),
    Column("storage_expires_ms", BigInteger),
    Column("cancel_requested_ms", BigInteger),
    Column("cancel_reason", Text),
    Column("waiter_seconds", BigInteger, nullable=False, default=0),
    Column("waiter_until_ms", BigInteger),
    Column("progress", JSON),
    Column("samples", JSON),
    Column("result", JSON),
    Column("failure", JSON),
    # The Airflow task that asked for the job; since schema version 2.
    Column("requester", JSON),
    # How the driver of the current attempt began, one of api.job_states.StartPath, when it was launched and when it
    # claimed the job; since schema version 3.
    Column("start_path", String(16)),
    Column("launched_ms", BigInteger),
    Column("claimed_ms", BigInteger),
    # The function of a user that the job runs: an identity, "" for none, null where it is not known.
    Column("user_code", Text),
    # Since when the job must not run; since schema version 4.
    Column("paused_ms", BigInteger),
    Index("lance_jobs_by_state", "state", "stage", "seq"),
    Index("lance_jobs_by_key", "idempotency_key"),
    Index("lance_jobs_by_table", "table_name", "seq"),
)

# What live jobs write. The primary key prevents that two of them write the same column or view.
locks = Table(
    "lance_job_locks",
    _metadata,
    Column("name", Text, primary_key=True),
    Column("job_id", String(64), ForeignKey("lance_jobs.job_id"), nullable=False, index=True),
)

events = Table(
    "lance_job_events",
    _metadata,
    Column("event_id", _Number, primary_key=True, autoincrement=True),
    Column("job_id", String(64), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("message", Text, nullable=False),
    Column("emitted_by", Text, nullable=False),
    Column("claim_entity", Text),
    Column("rows_processed", BigInteger),
    Column("fields", JSON),
    Index("lance_job_events_by_job", "job_id", "event_id"),
)

api_keys = Table(
    "lance_api_keys",
    _metadata,
    Column("key_id", String(32), primary_key=True),
    Column("name", Text, nullable=False),
    Column("secret_hash", String(64), nullable=False),
    Column("scopes", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("revoked_ms", BigInteger),
)

# Every version of a function that was registered. A dropped one keeps its number.
functions = Table(
    "lance_functions",
    _metadata,
    Column("name", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("definition", JSON, nullable=False),
    Column("definition_hash", String(64), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("dropped_ms", BigInteger),
)

# The value is encrypted; the key is never in the database.
stored_secrets = Table(
    "lance_secrets",
    _metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
)

servers = Table(
    "lance_servers",
    _metadata,
    Column("server_id", String(64), primary_key=True),
    Column("host", Text, nullable=False),
    Column("process", JSON, nullable=False),
    Column("url", Text),
    Column("started_ms", BigInteger, nullable=False),
    Column("lease_until_ms", BigInteger, nullable=False),
    Column("stopped", Boolean, nullable=False, default=False),
)


def _create_everything(connection: Connection) -> None:
    _metadata.create_all(connection)


def _add_requester(connection: Connection) -> None:
    _add_columns(connection, "requester")


def _add_start(connection: Connection) -> None:
    _add_columns(connection, "start_path", "launched_ms", "claimed_ms", "user_code")


def _add_pause(connection: Connection) -> None:
    _add_columns(connection, "paused_ms")


def _add_functions(connection: Connection) -> None:
    _metadata.create_all(connection, tables=[functions, stored_secrets])


def _add_columns(connection: Connection, *names: str) -> None:
    # The first step makes a new database from the tables above, which have the columns already.
    known = {column["name"] for column in inspect(connection).get_columns(jobs.name)}
    for name in names:
        if name not in known:
            kind = jobs.c[name].type.compile(connection.dialect)
            connection.execute(text(f"ALTER TABLE {jobs.name} ADD COLUMN {name} {kind}"))


#: Step ``n`` takes a database of version ``n`` to ``n + 1``. Released steps never change; new ones go to the end.
MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    _create_everything,
    _add_requester,
    _add_start,
    _add_pause,
    _add_functions,
)

_ADVISORY_LOCK = 0x6C616E6365  # "lance": servers that start together migrate one after the other


# How SQLAlchemy says that a database is stopped, locked, out of disk space or out of connections.
_UNAVAILABLE = (OperationalError, InterfaceError, NoFreeConnectionError)
# How long a statement waits for a locked SQLite file, or for PostgreSQL to accept a connection.
_WAIT_SECONDS = 10.0
_CONNECT_SECONDS = 5
# A readiness check must answer within the second or two that a load balancer waits.
_CHECK_SECONDS = 1.0
# What a few submissions need; a disk with less than this is full.
_CHECK_BYTES = 256 << 10


class DatabaseError(RuntimeError):
    """The registry's database cannot be used; the message says why and what to do."""


class RegistryUnavailableError(Exception):
    """The registry does not answer, is locked, or its disk is full. It is worth trying again.

    Nothing was written, unless ``outcome_unknown``: then the connection broke while the commit was on its way.
    """

    def __init__(self, reason: BaseException | str, *, outcome_unknown: bool = False) -> None:
        super().__init__(" ".join(str(getattr(reason, "orig", None) or reason).split()))
        self.outcome_unknown = outcome_unknown


class Database:
    """One engine. ``reading()`` gives a connection for single statements, ``writing()`` a transaction."""

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
            if parsed.get_backend_name() == "sqlite":
                self.engine = _sqlite(url)
            elif parsed.get_backend_name() == "postgresql":
                self.engine = _postgresql(parsed)
            else:
                raise DatabaseError(f"The registry is SQLite or PostgreSQL, not {parsed.get_backend_name()!r}.")
        except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
            raise DatabaseError(
                f"The registry's URL cannot be used: {error}. Write sqlite:///path/to/file or "
                "postgresql://user@host/database (which needs `airflow-provider-lance[postgres]`)."
            ) from None
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        # SQLite has one writer at a time, and makes the others wait in a sleep loop in which some of them starve.
        self._writer = threading.Lock()
        try:
            self._migrate()
        except (SQLAlchemyError, RegistryUnavailableError) as error:
            raise DatabaseError(
                f"The registry {parsed.render_as_string(hide_password=True)} cannot be opened: "
                f"{getattr(error, 'orig', None) or error}"
            ) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        try:
            with self.engine.connect() as connection:
                yield connection
        except _UNAVAILABLE as error:
            raise RegistryUnavailableError(error) from error

    @contextmanager
    def writing(self, wait: float = _WAIT_SECONDS) -> Iterator[Connection]:
        """A transaction that is committed, durably, when the block ends without an exception.

        ``wait`` is how many seconds it waits for other writers of a SQLite file, those of this process and of others.
        """
        block_ended = False
        try:
            with self._turn(wait), self.engine.connect() as connection:
                # SQLite's write lock is taken at the start: under load a transaction that read first cannot get it.
                connection = connection.execution_options(lance_write=True, lance_wait=wait)
                with connection.begin():
                    yield connection
                    block_ended = True
        except _UNAVAILABLE as error:
            # A failed commit of SQLite is undone. PostgreSQL may have committed before the connection broke.
            raise RegistryUnavailableError(error, outcome_unknown=block_ended and not self.is_sqlite) from error

    @contextmanager
    def _turn(self, wait: float) -> Iterator[None]:
        if not self.is_sqlite:
            yield
            return
        if not self._writer.acquire(timeout=wait):
            raise RegistryUnavailableError(f"another transaction did not end within {wait:g} s")
        try:
            yield
        finally:
            self._writer.release()

    def _migrate(self) -> None:
        with self.writing() as connection:
            if not self.is_sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
            known = inspect(connection).has_table(schema_version.name)
            version = connection.scalar(select(schema_version.c.version)) if known else 0
            version = version or 0
            if version > len(MIGRATIONS):
                raise DatabaseError(
                    f"The registry has schema version {version}; this release knows {len(MIGRATIONS)}. "
                    "Run the newer release, or use another registry."
                )
            if version == len(MIGRATIONS):
                return
            for step in MIGRATIONS[version:]:
                step(connection)
            if connection.execute(update(schema_version).values(version=len(MIGRATIONS))).rowcount == 0:
                connection.execute(insert(schema_version).values(version=len(MIGRATIONS)))

    def check(self) -> None:
        """Check with a write that the registry is available; ``RegistryUnavailableError`` says why it is not."""
        with self.writing(wait=_CHECK_SECONDS) as connection:
            connection.execute(update(schema_version).values(version=schema_version.c.version))
        if self.is_sqlite:
            # SQLite overwrites its write-ahead log, so a small transaction succeeds on a disk that has become full.
            folder = Path(str(self.engine.url.database)).absolute().parent
            try:
                with tempfile.TemporaryFile(prefix=".lance-check-", dir=folder) as file:
                    file.write(bytes(_CHECK_BYTES))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise RegistryUnavailableError(f"{folder} takes no new file: {error.strerror}") from error

    def close(self) -> None:
        self.engine.dispose()


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path.absolute()}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _postgresql(url: URL) -> Engine:
    if url.drivername in {"postgresql", "postgres"}:
        url = url.set(drivername="postgresql+psycopg")
    # Without these limits libpq waits minutes for a host that does not answer.
    defaults = {"connect_timeout": str(_CONNECT_SECONDS), "keepalives_idle": "10", "tcp_user_timeout": "15000"}
    url = url.update_query_dict({name: value for name, value in defaults.items() if name not in url.query})
    return create_engine(url, pool_size=16, max_overflow=32, pool_timeout=_WAIT_SECONDS, pool_pre_ping=True)


def _sqlite(url: str) -> Engine:
    path = make_url(url).database
    if path in (None, "", ":memory:"):
        raise DatabaseError("The registry must survive a restart: give SQLite a file.")
    Path(str(path)).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(
        url,
        connect_args={"timeout": _WAIT_SECONDS, "check_same_thread": False},
        pool_size=16,
        max_overflow=32,
        pool_timeout=_WAIT_SECONDS,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # The listener below begins transactions.
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")  # An answered submit survives a crash of the machine.
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        wait = options.get("lance_wait", _WAIT_SECONDS)
        connection.exec_driver_sql(f"PRAGMA busy_timeout={int(wait * 1000)}")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("lance_write") else "BEGIN")

    return engine

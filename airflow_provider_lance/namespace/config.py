"""The server's configuration file (TOML): clusters, environments, limits, Airflow. Every name and type is checked.

    [clusters.etl]
    master = "spark://spark:7077"
    deploy_mode = "client"
    conf = { "spark.executor.memory" = "4g" }
    max_drivers = 4

    [environments.vision]
    archives = ["s3://bucket/vision.tar.gz#environment"]
    env = { HF_HOME = "/models" }

Values may name the server's environment variables as ``${NAME}``, so that the file holds no secrets.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_lance.api.job_states import EXTERNAL
from airflow_provider_lance.engine.spark.session import DEFAULT_MASTER, is_local_master
from airflow_provider_lance.namespace.submission import LOCAL

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_DEPLOY_MODES = ("client", "cluster")
_LAUNCHES = ("auto", "python", "spark-submit")
_REUSES = ("sql", "function", "never")


class ConfigError(ValueError):
    """The configuration cannot be used; the message names the entry and says what it should be."""


@dataclass(frozen=True)
class Cluster:
    """Where a job runs, and how; one server runs at most ``max_drivers`` of its drivers at once.

    ``standby`` drivers wait for a job. ``reuse`` says which jobs a driver may run after its first one: ``sql`` those
    without a user's code, ``function`` also those of the same function and table, ``never`` none. A driver that waits
    beyond ``standby`` ends after ``idle_seconds``, and any after ``max_jobs`` jobs or with more than
    ``reuse_memory_bytes`` in use.
    """

    master: str = DEFAULT_MASTER
    deploy_mode: str = "client"
    conf: Mapping[str, str] = field(default_factory=dict)
    py_files: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    spark_submit: str | None = None
    launch: str = "auto"
    max_drivers: int = 2
    driver_rows: int | None = None  # None: what the engine thinks right
    standby: int = 0
    reuse: str = "sql"
    idle_seconds: float = 600.0
    max_jobs: int = 100
    reuse_memory_bytes: int = 4 << 30
    input_paths: tuple[str, ...] = ()  # folders that write jobs may read; empty: whatever the driver can read

    def check(self) -> None:
        if not self.master:
            raise ConfigError("`master` is empty.")
        if self.deploy_mode not in _DEPLOY_MODES:
            raise ConfigError(f"`deploy_mode` is {self.deploy_mode!r}; it can be client or cluster.")
        if self.launch not in _LAUNCHES:
            raise ConfigError(f"`launch` is {self.launch!r}; it can be auto, python or spark-submit.")
        if self.launch == "python" and not self._can_start_python:
            raise ConfigError(
                "`launch` is 'python': that needs a local or standalone master (local[…], spark://…), deploy_mode "
                "client and no `spark_submit`."
            )
        if self.max_drivers < 1:
            raise ConfigError("`max_drivers` must be at least 1.")
        for folder in self.input_paths:
            if not folder.startswith("/") and "://" not in folder:
                raise ConfigError(f"`input_paths` has {folder!r}; each must be an absolute path or a URI.")
        if self.driver_rows is not None and self.driver_rows < 0:
            raise ConfigError("`driver_rows` must be 0 or more.")
        self._check_waiting()

    def _check_waiting(self) -> None:
        if self.reuse not in _REUSES:
            raise ConfigError(f"`reuse` is {self.reuse!r}; it can be sql, function or never.")
        if self.standby < 0:
            raise ConfigError("`standby` must be 0 or more.")
        if self.standby and not self.starts_python:
            raise ConfigError(
                "`standby` needs drivers that start as Python: a local or standalone master, deploy_mode client, and "
                "neither `spark_submit` nor launch = 'spark-submit'."
            )
        for name in ("idle_seconds", "max_jobs", "reuse_memory_bytes"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"`{name}` must be above 0.")

    @property
    def keeps_drivers(self) -> bool:
        """Whether a driver may wait for a job, before its first one or after it."""
        return self.starts_python and (self.standby > 0 or self.reuse != "never")

    @property
    def driver_is_child(self) -> bool:
        """Whether the driver runs in the process that the server starts, and ends with it."""
        return self.deploy_mode == "client"

    @property
    def starts_python(self) -> bool:
        """Whether a driver starts as Python, which starts the JVM when its job needs Spark."""
        return self.launch != "spark-submit" and self._can_start_python

    @property
    def _can_start_python(self) -> bool:
        known = is_local_master(self.master) or self.master.startswith("spark://")
        return known and self.driver_is_child and self.spark_submit is None


@dataclass(frozen=True)
class JobEnvironment:
    """What a job's Python code needs beside Spark; requests name it as their ``manifest``."""

    py_files: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None

    def check(self) -> None:
        return


@dataclass(frozen=True)
class Limits:
    """The limits of one server, with sizes in bytes and times in seconds."""

    max_head_bytes: int = 64 << 10
    head_seconds: float = 10.0
    max_json_bytes: int = 16 << 20
    max_arrow_bytes: int = 1 << 30
    max_arrow_rows: int = 50_000_000
    threads: int = 32
    max_waiting_requests: int = 1000
    request_seconds: float = 300.0
    body_seconds: float = 30.0
    query_processes: int = 2
    query_memory_bytes: int = 2 << 30
    log_bytes: int = 32 << 20
    keep_days: float = 30.0

    def check(self) -> None:
        for item in dataclasses.fields(self):
            if getattr(self, item.name) <= 0:
                raise ConfigError(f"`{item.name}` must be above 0.")


@dataclass(frozen=True)
class Airflow:
    """The Airflow whose tasks submit jobs; ``url`` is where people reach its pages."""

    url: str = ""

    def check(self) -> None:
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"`url` is {self.url!r}; it must begin with http:// or https://.")


_Section = TypeVar("_Section", Cluster, JobEnvironment, Limits, Airflow)


@dataclass(frozen=True)
class ServerConfig:
    """The whole file. The cluster ``local`` always exists, and ``external`` means that the server starts no driver."""

    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    environments: Mapping[str, JobEnvironment] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    airflow: Airflow = field(default_factory=Airflow)

    def cluster(self, name: str | None) -> Cluster:
        found = self.clusters.get(name or LOCAL)
        if found is None and (name or LOCAL) == LOCAL:
            return Cluster()
        if found is None:
            raise ConfigError(f"There is no cluster {name!r}; this server knows {_names(self.cluster_names)}.")
        return found

    def environment(self, name: str | None) -> JobEnvironment:
        if not name:
            return JobEnvironment()
        if name not in self.environments:
            known = _names(tuple(self.environments)) if self.environments else "none"
            raise ConfigError(f"There is no environment {name!r}; this server knows {known}.")
        return self.environments[name]

    def with_standby(self, drivers: int) -> ServerConfig:
        """The same configuration with so many waiting drivers of the cluster ``local``."""
        local = dataclasses.replace(self.cluster(LOCAL), standby=drivers)
        try:
            local.check()
        except ConfigError as error:
            raise ConfigError(f"[clusters.{LOCAL}] {error}") from None
        return dataclasses.replace(self, clusters={**self.clusters, LOCAL: local})

    @property
    def cluster_names(self) -> tuple[str, ...]:
        """The names that a request may give as ``cluster``."""
        return (*sorted({LOCAL, *self.clusters}), EXTERNAL)

    @classmethod
    def load(cls, path: Path | None, environ: Mapping[str, str] | None = None) -> ServerConfig:
        if path is None:
            return cls()
        try:
            data = tomllib.loads(path.read_text())
        except OSError as error:
            raise ConfigError(f"The configuration {path} cannot be read: {error.strerror}.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"The configuration {path} is not valid TOML: {error}.") from None
        try:
            return cls.from_dict(data, os.environ if environ is None else environ)
        except ConfigError as error:
            raise ConfigError(f"The configuration {path}: {error}") from None

    @classmethod
    def from_dict(cls, data: Mapping[str, object], environ: Mapping[str, str] | None = None) -> ServerConfig:
        environ = os.environ if environ is None else environ
        unknown = set(data) - {"clusters", "environments", "limits", "airflow"}
        if unknown:
            known = "airflow, clusters, environments and limits"
            raise ConfigError(f"unknown section {_names(unknown)}; there are {known}.")
        clusters = {
            name: _read_section(Cluster, f"clusters.{name}", value, environ)
            for name, value in _table("clusters", data.get("clusters", {})).items()
        }
        if EXTERNAL in clusters:
            raise ConfigError(f"a cluster cannot be called {EXTERNAL!r}: that name means nothing is launched.")
        environments = {
            name: _read_section(JobEnvironment, f"environments.{name}", value, environ)
            for name, value in _table("environments", data.get("environments", {})).items()
        }
        return cls(
            clusters,
            environments,
            _read_section(Limits, "limits", data.get("limits", {}), environ),
            _read_section(Airflow, "airflow", data.get("airflow", {}), environ),
        )


def _read_section(kind: type[_Section], where: str, value: object, environ: Mapping[str, str]) -> _Section:
    fields = {item.name: item for item in dataclasses.fields(kind)}
    values: dict[str, Any] = {}  # Each value has the type that its field declares.
    for key, given in _table(where, value).items():
        if key not in fields:
            raise ConfigError(f"[{where}] has no entry {key!r}; it can have {_names(fields)}.")
        values[key] = _read_entry(f"{where}.{key}", str(fields[key].type), given, environ)
    entry = kind(**values)
    try:
        entry.check()
    except ConfigError as error:
        raise ConfigError(f"[{where}] {error}") from None
    return entry


def _read_entry(where: str, kind: str, value: object, environ: Mapping[str, str]) -> object:
    """An entry of the type that its dataclass field declares."""
    if kind.startswith("tuple"):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"`{where}` must be a list of strings.")
        return tuple(_expanded(where, item, environ) for item in value)
    if kind.startswith("Mapping"):
        return {key: _expanded(where, _scalar(where, item), environ) for key, item in _table(where, value).items()}
    if kind.startswith("str"):
        if not isinstance(value, str):
            raise ConfigError(f"`{where}` must be a string.")
        return _expanded(where, value, environ)
    whole = kind.startswith("int")
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ConfigError(f"`{where}` must be a {'whole ' if whole else ''}number.")
    return value


def _scalar(where: str, value: object) -> str:
    """A value of TOML as Spark and environment variables spell it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"`{where}` must hold strings, numbers or booleans.")


def _expanded(where: str, value: str, environ: Mapping[str, str]) -> str:
    def variable(match: re.Match[str]) -> str:
        if match[1] not in environ:
            raise ConfigError(f"`{where}` names the environment variable {match[1]}, which is not set.")
        return environ[match[1]]

    return _VARIABLE.sub(variable, value)


def _table(where: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"[{where}] must be a table.")
    return value


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))

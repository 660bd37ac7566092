"""Starts drivers, with ``spark-submit`` or as Python, and ends them. It knows processes, files and Spark's options.

The launch token and the Spark properties may hold secrets, so they are written to files that only this user can read
and the command line has only the names of these files.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_lance.api.job_states import TOKEN_FILE_VARIABLE, JobType
from airflow_provider_lance.engine.spark.java_home import JavaNotFoundError
from airflow_provider_lance.engine.spark.session import TUNED, loopback_environment
from airflow_provider_lance.engine.spark.submit_command import (
    APPLICATION,
    python_command,
    spark_submit_path,
    submit_environment,
    submit_options,
)
from airflow_provider_lance.namespace.config import Cluster, JobEnvironment, ServerConfig
from airflow_provider_lance.namespace.jobs.driver_logs import DriverLogs
from airflow_provider_lance.namespace.jobs.executions import Launch, claim_token_of
from airflow_provider_lance.system.private_files import write_private
from airflow_provider_lance.system.process_groups import ProcessGroup, environment_without_secrets, find_group

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_DRIVER_VARIABLES = ("spark.kubernetes.driverEnv.", "spark.yarn.appMasterEnv.")
_PACKAGE = Path(__file__).resolve().parents[2]


class LaunchError(RuntimeError):
    """No driver can be started at all; the message says what is missing."""


@dataclass
class Driver:
    """The process group of a driver. ``child`` is None if another server started it."""

    group: ProcessGroup
    child: subprocess.Popen[bytes] | None = None

    def exit_code(self) -> int | None:
        """The exit code of a driver whose processes have all ended, -1 if it is unknown; None while any is left."""
        code = self.child.poll() if self.child is not None else None  # This also reaps the child.
        if self.group.alive:
            return None
        return -1 if code is None else code


class Launcher:
    """Starts drivers that report to ``namespace_url``; ``directory`` has their logs and their private files."""

    def __init__(self, config: ServerConfig, directory: Path, namespace_url: str) -> None:
        self.config = config
        self.namespace_url = namespace_url
        directory = directory.absolute()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.logs = DriverLogs(directory / "logs", config.limits.log_bytes)
        self._running = directory / "running"

    def start(self, launch: Launch) -> Driver:
        """Start a driver in a session, and so a process group, of its own."""
        cluster = self.config.cluster(launch.cluster)
        environment = self.config.environment(launch.environment)
        folder = self._folder(launch.job_id, launch.attempt)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        token = self._token(launch.job_id, launch.attempt)
        # The driver also commits through the namespace with the claim that it will get, so it needs no API key.
        claim = claim_token_of(launch.token, launch.job_id, launch.attempt)
        write_private(token, json.dumps({"launch_token": launch.token, "bearer": claim}))
        properties = folder / "spark.properties"
        write_private(properties, _properties(self._conf(launch, cluster, environment, token)))
        options = self._options(launch, cluster, environment, properties, token)
        variables = self._variables(cluster, environment, token)
        arguments = ["--job-id", launch.job_id, "--attempt", str(launch.attempt), "--namespace", self.namespace_url]
        if cluster.driver_rows is not None:
            arguments += ["--driver-rows", str(cluster.driver_rows)]
        if cluster.starts_python:
            command, more = python_command(arguments, options, {**cluster.conf, **environment.conf}, variables)
            variables |= more
        else:
            command = [cluster.spark_submit or spark_submit_path(), *options, APPLICATION, *arguments]
        try:
            with self.logs.open(launch.job_id, launch.attempt) as log:
                child = subprocess.Popen(  # noqa: S603 - the operator's own Python or spark-submit
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=variables,
                    cwd=folder,
                    start_new_session=True,
                    close_fds=True,
                )
        except OSError as error:
            raise LaunchError(
                f"{command[0]} cannot be started: {error.strerror}. Set SPARK_HOME, put spark-submit on the PATH, or "
                "`pip install 'airflow-provider-lance[spark]'`."
            ) from None
        return Driver(ProcessGroup.of(child.pid, self._mark(launch.job_id, launch.attempt)), child)

    def find(self, job_id: str, attempt: int) -> Driver | None:
        """A driver on this machine whose server died before it could store the driver's process group."""
        group = find_group(self._mark(job_id, attempt))
        return None if group is None else Driver(group)

    def end(self, job_id: str, attempt: int, driver: Driver | None) -> bool:
        """Kill what is left of an attempt and remove its files; True once none of its processes runs."""
        gone = driver is None or driver.exit_code() is not None or driver.group.kill()
        if driver is not None and driver.child is not None:
            driver.child.poll()
        if gone:
            folder = self._folder(job_id, attempt)
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # The folder may have files of other attempts.
                folder.parent.rmdir()
        return gone

    def delete_logs(self, job_id: str) -> None:
        self.logs.delete(job_id)

    def _mark(self, job_id: str, attempt: int) -> str:
        return f"{TOKEN_FILE_VARIABLE}={self._token(job_id, attempt)}"

    def _token(self, job_id: str, attempt: int) -> Path:
        return self._folder(job_id, attempt) / "launch.json"

    def _folder(self, job_id: str, attempt: int) -> Path:
        return self._running / job_id / str(attempt)

    def _options(
        self, launch: Launch, cluster: Cluster, environment: JobEnvironment, properties: Path, token: Path
    ) -> list[str]:
        conf = {**cluster.conf, **environment.conf}
        try:
            options = submit_options(
                master=cluster.master,
                deploy_mode=cluster.deploy_mode,
                # submit_options puts the engine's own settings on the command line, where they would override the file.
                conf={name: value for name, value in conf.items() if name in TUNED or name == _JAVA_OPTIONS},
                py_files=[*cluster.py_files, *environment.py_files],
                archives=[*cluster.archives, *environment.archives],
                image=environment.image,
                data_in_jvm=launch.job_type == JobType.REFRESH.value,
            )
        except JavaNotFoundError as error:
            raise LaunchError(str(error)) from None
        files = [] if cluster.driver_is_child else ["--files", str(token)]
        # Without --load-spark-defaults a file of properties replaces the cluster's spark-defaults.conf.
        return ["--properties-file", str(properties), "--load-spark-defaults", *files, *options]

    def _conf(self, launch: Launch, cluster: Cluster, environment: JobEnvironment, token: Path) -> dict[str, str]:
        conf = {
            "spark.app.name": f"lance {launch.table_name} {launch.job_id}"[:200],
            **cluster.conf,
            **environment.conf,
        }
        if not cluster.driver_is_child:
            # The driver runs on another machine. The token is sent there as a file of the application.
            for prefix in _DRIVER_VARIABLES:
                conf[prefix + TOKEN_FILE_VARIABLE] = token.name
        for name, value in environment.env.items():
            for prefix in ("spark.executorEnv.", *_DRIVER_VARIABLES):
                conf.setdefault(prefix + name, value)
        return conf

    def _variables(self, cluster: Cluster, environment: JobEnvironment, token: Path) -> dict[str, str]:
        inherited = environment_without_secrets()
        variables = {**inherited, **cluster.env, **environment.env, TOKEN_FILE_VARIABLE: str(token)}
        # If the server runs from a source tree, its drivers must import that package and not an installed one.
        paths = [str(_PACKAGE.parent), *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
        variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        return variables | submit_environment(environ=variables) | loopback_environment(cluster.master, variables)


def _properties(conf: Mapping[str, str]) -> str:
    """A Java properties file, escaped so that no value can begin another line."""
    return "".join(f"{_escaped(name, key=True)}={_escaped(value)}\n" for name, value in sorted(conf.items()))


def _escaped(text: str, *, key: bool = False) -> str:
    special = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    if key:
        special |= {"=": "\\=", ":": "\\:", " ": "\\ ", "#": "\\#", "!": "\\!"}
    escaped = "".join(special.get(character, character) for character in text)
    escaped = "".join(
        character
        if character.isascii()
        else "".join(f"\\u{unit:04x}" for unit in memoryview(character.encode("utf-16-le")).cast("H"))
        for character in escaped
    )
    return "\\" + escaped if not key and escaped.startswith(" ") else escaped

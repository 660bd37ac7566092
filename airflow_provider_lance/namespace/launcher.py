"""Starts drivers with ``spark-submit`` and ends them. Knows processes, files and Spark's options; nothing of SQL.

The command line carries names only: the launch token and the Spark properties, which may hold secrets, go into
files that only this user can read.
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

from airflow_provider_lance.api.job_words import JobType
from airflow_provider_lance.engine.java import JavaNotFoundError
from airflow_provider_lance.engine.session import TUNED, loopback_environment
from airflow_provider_lance.engine.submit import submit_command, submit_environment
from airflow_provider_lance.namespace.config import Cluster, Environment, ServerConfig
from airflow_provider_lance.namespace.executions import Launch, claim_token_of
from airflow_provider_lance.namespace.logs import DriverLogs
from airflow_provider_lance.namespace.processes import ProcessGroup, environment_without_secrets, find_group
from airflow_provider_lance.private_files import write_private

TOKEN_FILE_VARIABLE = "LANCE_JOB_TOKEN_FILE"  # noqa: S105 - the name of a variable
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_DRIVER_VARIABLES = ("spark.kubernetes.driverEnv.", "spark.yarn.appMasterEnv.")
_PACKAGE = Path(__file__).resolve().parents[1]


class LaunchError(RuntimeError):
    """No driver can be started at all; says what is missing."""


@dataclass
class Driver:
    """A process group we started, or one an earlier server started and we adopted (then ``child`` is None)."""

    group: ProcessGroup
    child: subprocess.Popen[bytes] | None = None

    def exit_code(self) -> int | None:
        """The exit code of a driver that is gone with all its processes; None while any is left. -1: unknown."""
        code = self.child.poll() if self.child is not None else None  # also reaps it
        if self.group.alive:
            return None
        return -1 if code is None else code


class Launcher:
    """``namespace_url`` is where drivers find us; ``directory`` keeps logs and the files of running attempts."""

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
        # With the claim it will get, the driver also commits through the namespace: no key of its own is needed.
        claim = claim_token_of(launch.token, launch.job_id, launch.attempt)
        write_private(token, json.dumps({"launch_token": launch.token, "bearer": claim}))
        properties = folder / "spark.properties"
        write_private(properties, _properties(self._conf(launch, cluster, environment, token)))
        command = self._command(launch, cluster, environment, properties, token)
        variables = self._variables(cluster, environment, token)
        try:
            with self.logs.open(launch.job_id, launch.attempt) as log:
                child = subprocess.Popen(  # noqa: S603 - the operator's own spark-submit
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
        """A driver on this machine that was started by a server which died before it could write that down."""
        group = find_group(self._mark(job_id, attempt))
        return None if group is None else Driver(group)

    def end(self, job_id: str, attempt: int, driver: Driver | None) -> bool:
        """Kill whatever is left of an attempt and remove its files; True once nothing runs any more."""
        gone = driver is None or driver.exit_code() is not None or driver.group.kill()
        if driver is not None and driver.child is not None:
            driver.child.poll()
        if gone:
            folder = self._folder(job_id, attempt)
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # other attempts' files may be there
                folder.parent.rmdir()
        return gone

    def forget(self, job_id: str) -> None:
        self.logs.forget(job_id)

    def _mark(self, job_id: str, attempt: int) -> str:
        return f"{TOKEN_FILE_VARIABLE}={self._token(job_id, attempt)}"

    def _token(self, job_id: str, attempt: int) -> Path:
        return self._folder(job_id, attempt) / "launch.json"

    def _folder(self, job_id: str, attempt: int) -> Path:
        return self._running / job_id / str(attempt)

    def _command(
        self, launch: Launch, cluster: Cluster, environment: Environment, properties: Path, token: Path
    ) -> list[str]:
        conf = {**cluster.conf, **environment.conf}
        arguments = ["--job-id", launch.job_id, "--attempt", str(launch.attempt), "--namespace", self.namespace_url]
        try:
            program, *rest = submit_command(
                arguments,
                master=cluster.master,
                deploy_mode=cluster.deploy_mode,
                # What overrides the engine's own settings must stand where they stand; the rest is in the file.
                conf={name: value for name, value in conf.items() if name in TUNED or name == _JAVA_OPTIONS},
                py_files=[*cluster.py_files, *environment.py_files],
                archives=[*cluster.archives, *environment.archives],
                image=environment.image,
                data_in_jvm=launch.job_type == JobType.REFRESH.value,
            )
        except JavaNotFoundError as error:
            raise LaunchError(str(error)) from None
        files = [] if cluster.driver_is_child else ["--files", str(token)]
        # Without the second option a file of properties replaces the cluster's spark-defaults.conf.
        settings = ["--properties-file", str(properties), "--load-spark-defaults"]
        return [cluster.spark_submit or program, *settings, *files, *rest]

    def _conf(self, launch: Launch, cluster: Cluster, environment: Environment, token: Path) -> dict[str, str]:
        conf = {
            "spark.app.name": f"lance {launch.table_name} {launch.job_id}"[:200],
            **cluster.conf,
            **environment.conf,
        }
        if not cluster.driver_is_child:
            # The driver starts elsewhere: the token travels as a file of the application, and these name it there.
            for prefix in _DRIVER_VARIABLES:
                conf[prefix + TOKEN_FILE_VARIABLE] = token.name
        for name, value in environment.env.items():
            for prefix in ("spark.executorEnv.", *_DRIVER_VARIABLES):
                conf.setdefault(prefix + name, value)
        return conf

    def _variables(self, cluster: Cluster, environment: Environment, token: Path) -> dict[str, str]:
        inherited = environment_without_secrets()
        variables = {**inherited, **cluster.env, **environment.env, TOKEN_FILE_VARIABLE: str(token)}
        # A driver run from a source tree finds this very package, not another installed one.
        paths = [str(_PACKAGE.parent), *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
        variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        return variables | submit_environment(environ=variables) | loopback_environment(cluster.master, variables)


def _properties(conf: Mapping[str, str]) -> str:
    """A Java properties file; everything special escaped, so that no value can begin another line."""
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

"""Starts drivers, with ``spark-submit`` or as Python, and ends them. It knows processes, files and Spark's options.

The launch token and the Spark properties may hold secrets, so they are written to files that only this user can read
and the command line has only the names of these files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
from airflow_provider_lance.system.channels import Channel
from airflow_provider_lance.system.private_files import write_private
from airflow_provider_lance.system.process_groups import (
    ProcessGroup,
    environment_without_secrets,
    find_group,
    host_name,
)

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_DRIVER_VARIABLES = ("spark.kubernetes.driverEnv.", "spark.yarn.appMasterEnv.")
_PACKAGE = Path(__file__).resolve().parents[2]
#: The log of a driver that has no job, in its folder.
OWN_LOG = "driver.log"
#: The variable that marks the processes of a driver which may wait; its value is the folder of that driver.
DRIVER_FOLDER_VARIABLE = "LANCE_DRIVER_FOLDER"
# What Spark remembers for its UI, which for a driver of many jobs must not grow with them.
_UI_BOUNDS = {
    "spark.ui.retainedJobs": "500",
    "spark.ui.retainedStages": "500",
    "spark.ui.retainedTasks": "10000",
    "spark.sql.ui.retainedExecutions": "50",
}


class LaunchError(RuntimeError):
    """No driver can be started at all; the message says what is missing."""


@dataclass
class Driver:
    """The process group of a driver. ``child`` is None if another server started it.

    A driver that may run several jobs has a ``channel``, over which it gets them, and a ``folder`` of its own.
    """

    group: ProcessGroup
    child: subprocess.Popen[bytes] | None = None
    channel: Channel | None = None
    folder: Path | None = None

    def exit_code(self) -> int | None:
        """The exit code of a driver whose processes have all ended, -1 if it is unknown; None while any is left."""
        self._poll()  # This reaps the leader while other members of the group may be left.
        if self.group.alive:
            return None
        code = self._poll()  # The leader may have ended after the first look.
        return -1 if code is None else code

    def _poll(self) -> int | None:
        return self.child.poll() if self.child is not None else None


class Launcher:
    """Starts drivers that report to ``namespace_url``; ``directory`` has their logs and their private files."""

    def __init__(self, config: ServerConfig, directory: Path, namespace_url: str) -> None:
        self.config = config
        self.namespace_url = namespace_url
        directory = directory.absolute()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.logs = DriverLogs(directory / "logs", config.limits.log_bytes)
        self._running = directory / "running"
        self._drivers = directory / "drivers"

    def start(self, launch: Launch) -> Driver:
        """Start a driver for a job, in a session, and so a process group, of its own."""
        cluster, environment = self.config.cluster(launch.cluster), self.config.environment(launch.environment)
        files = self._folder(launch.job_id, launch.attempt)
        files.mkdir(parents=True, exist_ok=True, mode=0o700)
        token = self._token(launch.job_id, launch.attempt)
        write_private(token, json.dumps(self.secrets(launch)))
        conf = {"spark.app.name": f"lance {launch.table_name} {launch.job_id}"[:200]}
        if not cluster.driver_is_child:
            # The driver runs on another machine. The token is sent there as a file of the application.
            conf |= {prefix + TOKEN_FILE_VARIABLE: token.name for prefix in _DRIVER_VARIABLES}
        folder = self._driver_folder() if cluster.keeps_drivers else files
        data_in_jvm = launch.job_type == JobType.REFRESH.value
        start = self._prepare(cluster, environment, folder, conf, data_in_jvm=data_in_jvm)
        start.variables[TOKEN_FILE_VARIABLE] = str(token)
        arguments = ["--job-id", launch.job_id, "--attempt", str(launch.attempt), *self._arguments(cluster)]
        if launch.on_spark and cluster.starts_python:
            arguments.append("--start-spark")
        mark = self._mark(launch.job_id, launch.attempt)
        with self.logs.open(launch.job_id, launch.attempt) as log:
            if cluster.keeps_drivers:
                return self._start_kept(start, arguments, log, mark)
            if cluster.starts_python:
                child = start.python(arguments, log)
            else:
                files_option = [] if cluster.driver_is_child else ["--files", str(token)]
                submit = cluster.spark_submit or spark_submit_path()
                child = start.spawn([submit, *start.options, *files_option, APPLICATION, *arguments], log)
        return Driver(ProcessGroup.of(child.pid, mark), child)

    def start_waiting(self, name: str) -> Driver:
        """Start a driver of this cluster that waits for its first job and starts Spark meanwhile."""
        cluster, folder = self.config.cluster(name), self._driver_folder()
        start = self._prepare(cluster, JobEnvironment(), folder, {}, data_in_jvm=True)
        log = os.open(folder / OWN_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            mark = f"{DRIVER_FOLDER_VARIABLE}={folder}"
            return self._start_kept(start, ["--warm-up", *self._arguments(cluster)], log, mark)
        finally:
            os.close(log)

    @staticmethod
    def _start_kept(start: _Start, arguments: list[str], log: int, mark: str) -> Driver:
        """Start a driver that may run several jobs, with a channel that nobody else inherits."""
        channel, end = Channel.pair()
        arguments = [*arguments, "--channel", str(end.fileno())]
        if start.cluster.reuse == "function":
            arguments.append("--same-function")
        start.variables[DRIVER_FOLDER_VARIABLE] = str(start.folder)
        with end:
            try:
                child = start.python(arguments, log, end.fileno())
            except LaunchError:
                channel.close()
                shutil.rmtree(start.folder, ignore_errors=True)
                raise
        return Driver(ProcessGroup.of(child.pid, mark), child, channel, start.folder)

    @staticmethod
    def secrets(launch: Launch) -> dict[str, str]:
        """What a driver needs to claim a job.

        It also commits through the namespace with the claim that it will get, so it needs no API key.
        """
        claim = claim_token_of(launch.token, launch.job_id, launch.attempt)
        return {"launch_token": launch.token, "bearer": claim}

    def recipe(self, cluster_name: str, environment_name: str | None) -> str:
        """A text that changes when a driver would be started otherwise, by its configuration or other packages."""
        cluster, environment = self.config.cluster(cluster_name), self.config.environment(environment_name)
        files = [*cluster.py_files, *cluster.archives, *environment.py_files, *environment.archives]
        started_with = [
            asdict(cluster),
            asdict(environment),
            self.namespace_url,
            environment_without_secrets(),
            _installed(),
            [_changed(Path(file.partition("#")[0])) for file in files],
        ]
        return hashlib.sha256(json.dumps(started_with, sort_keys=True).encode()).hexdigest()

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
            self.delete_files(job_id, attempt)
            self.delete_driver(driver)
        return gone

    def end_waiting(self, driver: Driver) -> bool:
        """Kill a driver that has no job and remove its files; True once none of its processes runs."""
        gone = driver.exit_code() is not None or driver.group.kill()
        if driver.child is not None:
            driver.child.poll()
        if gone:
            self.delete_driver(driver)
        return gone

    def delete_files(self, job_id: str, attempt: int) -> None:
        """Remove the private files of an attempt."""
        folder = self._folder(job_id, attempt)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # The folder may have files of other attempts.
            folder.parent.rmdir()

    def delete_left_folders(self) -> None:
        """Remove the folders of drivers of this machine that ended after their server did."""
        for folder in self._drivers.glob(f"{host_name()}-*"):
            if find_group(f"{DRIVER_FOLDER_VARIABLE}={folder}") is None:
                shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def delete_driver(driver: Driver | None) -> None:
        """Close the channel of a driver and remove its folder."""
        if driver is not None and driver.channel is not None:
            driver.channel.close()
        if driver is not None and driver.folder is not None:
            shutil.rmtree(driver.folder, ignore_errors=True)

    def _driver_folder(self) -> Path:
        folder = self._drivers / f"{host_name()}-{uuid.uuid4().hex}"
        folder.mkdir(parents=True, mode=0o700)
        return folder

    def delete_logs(self, job_id: str) -> None:
        self.logs.delete(job_id)

    def _mark(self, job_id: str, attempt: int) -> str:
        return f"{TOKEN_FILE_VARIABLE}={self._token(job_id, attempt)}"

    def _token(self, job_id: str, attempt: int) -> Path:
        return self._folder(job_id, attempt) / "launch.json"

    def _folder(self, job_id: str, attempt: int) -> Path:
        return self._running / job_id / str(attempt)

    def _arguments(self, cluster: Cluster) -> list[str]:
        rows = [] if cluster.driver_rows is None else ["--driver-rows", str(cluster.driver_rows)]
        return ["--namespace", self.namespace_url, *rows]

    def _prepare(
        self,
        cluster: Cluster,
        environment: JobEnvironment,
        folder: Path,
        conf: Mapping[str, str],
        *,
        data_in_jvm: bool,
    ) -> _Start:
        """Write the Spark properties of a driver into its folder, and find its options and variables."""
        properties = folder / "spark.properties"
        write_private(properties, _properties(_conf(cluster, environment, conf)))
        chosen = {**cluster.conf, **environment.conf}
        try:
            options = submit_options(
                master=cluster.master,
                deploy_mode=cluster.deploy_mode,
                # submit_options puts the engine's own settings on the command line, where they would override the file.
                conf={name: value for name, value in chosen.items() if name in TUNED or name == _JAVA_OPTIONS},
                py_files=[*cluster.py_files, *environment.py_files],
                archives=[*cluster.archives, *environment.archives],
                image=environment.image,
                data_in_jvm=data_in_jvm,
            )
        except JavaNotFoundError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise LaunchError(str(error)) from None
        # Without --load-spark-defaults a file of properties replaces the cluster's spark-defaults.conf.
        options = ["--properties-file", str(properties), "--load-spark-defaults", *options]
        return _Start(cluster, environment, folder, options, _variables(cluster, environment))


@dataclass(frozen=True)
class _Start:
    """What a driver is started with: its working directory, the options of spark-submit and its variables."""

    cluster: Cluster
    environment: JobEnvironment
    folder: Path
    options: list[str]
    variables: dict[str, str]

    def python(self, arguments: list[str], log: int, *inherited: int) -> subprocess.Popen[bytes]:
        """Start Python, which starts the JVM once a job needs it."""
        conf = {**self.cluster.conf, **self.environment.conf}
        command, more = python_command(arguments, self.options, conf, self.variables)
        self.variables.update(more)
        return self.spawn(command, log, *inherited)

    def spawn(self, command: list[str], log: int, *inherited: int) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own that inherits nothing but its log and these descriptors."""
        try:
            return subprocess.Popen(  # noqa: S603 - the operator's own Python or spark-submit
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.variables,
                cwd=self.folder,
                start_new_session=True,
                pass_fds=inherited,
            )
        except OSError as error:
            raise LaunchError(
                f"{command[0]} cannot be started: {error.strerror}. Set SPARK_HOME, put spark-submit on the PATH, or "
                "`pip install 'airflow-provider-lance[spark]'`."
            ) from None


def _conf(cluster: Cluster, environment: JobEnvironment, more: Mapping[str, str]) -> dict[str, str]:
    bounds = _UI_BOUNDS if cluster.keeps_drivers else {}
    conf = {**more, **bounds, **cluster.conf, **environment.conf}
    for name, value in environment.env.items():
        for prefix in ("spark.executorEnv.", *_DRIVER_VARIABLES):
            conf.setdefault(prefix + name, value)
    return conf


def _variables(cluster: Cluster, environment: JobEnvironment) -> dict[str, str]:
    variables = {**environment_without_secrets(), **cluster.env, **environment.env}
    # If the server runs from a source tree, its drivers must import that package and not an installed one.
    paths = [str(_PACKAGE.parent), *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
    variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return variables | submit_environment(environ=variables) | loopback_environment(cluster.master, variables)


def _installed() -> list[float]:
    """The times at which a package was last installed, removed or upgraded, and this one was last changed."""
    sites = [Path(path) for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    return [*map(_changed, sites), max(map(_changed, _PACKAGE.rglob("*.py")))]


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


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

"""``LanceSparkSubmitOperator``: Airflow's own Spark connection executes a Lance job.

The only module that imports ``SparkSubmitOperator``, which costs 150 ms. The engine's application file is found
without importing the engine.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseHook

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.jobs import Job, JobState
from airflow_provider_lance.api.wire import Wire
from airflow_provider_lance.configuration import read_configuration
from airflow_provider_lance.hooks.lance import LanceNamespaceHook, is_conflict
from airflow_provider_lance.links.job import LanceJobLink, LanceSparkLink
from airflow_provider_lance.operators.base import task_error
from airflow_provider_lance.operators.result import job_failure, job_result, job_table, look, read_job_id
from airflow_provider_lance.operators.submit import idempotency_key
from airflow_provider_lance.triggers.outcome import Follower, job_event

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

TOKEN_FILE_VARIABLE = "LANCE_JOB_TOKEN_FILE"  # noqa: S105 - the name of a variable
EXTERNAL = "external"
_SPARK_UI = re.compile(r"(?:SparkUI.*started at|tracking URL:)\s*(https?://[^\s,]+)", re.IGNORECASE)


def application_path() -> str:
    """The engine's application file, without importing the engine."""
    package = importlib.util.find_spec("airflow_provider_lance")
    assert package is not None
    assert package.origin is not None
    return str(Path(package.origin).parent / "engine" / "app.py")


class LanceSparkSubmitOperator(SparkSubmitOperator):
    """Execute a Lance job with ``spark-submit`` through a Spark connection of Airflow.

    Give either ``job_id`` (a job that was submitted with ``cluster="external"`` and waits to be claimed), or
    ``operation`` and ``request``: then the operator submits the job itself. Every other argument is
    ``SparkSubmitOperator``'s, such as ``conn_id``, ``conf``, ``executor_memory``, ``py_files``.

    The worker claims the job with the Lance connection. The driver gets only that claim, which is good for this one
    job while it runs: in a file that nobody else can read, never on a command line. A retry whose earlier driver still
    works waits for that driver's end instead of starting a second one.

    :param job_id: the job, or the dict a job operator returned. (templated)
    :param operation: ``alter_table_backfill_columns`` or ``refresh_materialized_view``.
    :param request: the operation's fields, ``id`` included. (templated)
    :param lance_conn_id: the connection of the namespace that has the job. (templated)
    :param namespace_url: where the driver reaches the namespace, if not where Airflow does. (templated)
    :param cancel_on_kill: cancel the job when the task is killed.
    :return: what a job operator returns.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "job_id",
        "request",
        "lance_conn_id",
        "namespace_url",
    )
    operator_extra_links = (LanceJobLink(), LanceSparkLink())

    def __init__(
        self,
        *,
        job_id: str | Mapping[str, Any] | None = None,
        operation: str | None = None,
        request: Mapping[str, Any] | None = None,
        lance_conn_id: str = LanceNamespaceHook.default_conn_name,
        namespace_url: str | None = None,
        cancel_on_kill: bool = True,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("name", "lance")
        super().__init__(**kwargs)
        if (job_id is None) == (operation is None):
            raise ValueError("Give either `job_id`, or `operation` and `request`.")
        self.job_id = job_id
        self.operation = operation
        self.request = dict(request or {})
        self.lance_conn_id = lance_conn_id
        self.namespace_url = namespace_url
        self.cancel_on_kill = cancel_on_kill
        self._lance: LanceNamespaceHook | None = None
        self._running: str | None = None

    def execute(self, context: Context) -> Any:
        BaseHook.get_connection(self._conn_id)  # SparkSubmitHook takes a missing connection for YARN, silently
        hook = self._lance = LanceNamespaceHook(self.lance_conn_id)
        if not hook.speaks_rest:
            raise AirflowFailException(
                f"A driver reaches its job over HTTP, but the connection {self.lance_conn_id!r} has no server."
            )
        job_id = self._job(context, hook)
        self._running = job_id
        context["ti"].xcom_push(key="job_id", value=job_id)
        LanceJobLink().push(context, hook.resolved.link(job_id))
        claim = self._claim(hook, job_id)
        if claim is not None:
            self._drive(context, hook, job_id, claim)
        job = look(hook, job_id)
        if not isinstance(job, Job):
            raise AirflowException(f"How job {job_id} ended cannot be told: {job or 'the server does not know it'}")
        if not job.state.terminal:
            raise AirflowException(
                f"The driver of job {job_id} ended without a word; see its log above. The server gives the job back "
                "when the driver's lease has run out, and the next try waits for that."
            )
        if job.state is not JobState.DONE:
            raise job_failure(job_event(job), hook.resolved.link(job_id))
        return job_result(job_id, job.job_type, job_table(hook, job), job.state.value, job.result)

    def on_kill(self) -> None:
        """Cancel the job and end ``spark-submit``. Runs inside a signal handler, so it has a client of its own."""
        settings = self._lance.resolved.settings if self._lance is not None else None
        if self.cancel_on_kill and self._running and settings is not None:
            try:
                with Wire(settings) as wire:
                    wire.call("cancel_job", {"job_id": self._running})
            except WireError as error:
                self.log.warning("The job could not be cancelled: %s", error)
        if self._hook is not None:
            super().on_kill()

    def _job(self, context: Context, hook: LanceNamespaceHook) -> str:
        if self.operation is None:
            return read_job_id(self.job_id)
        table_id = hook.parse_id(self.request.get("id") or "")
        key = idempotency_key(context, self.operation, table_id)
        failure: AirflowException
        try:
            answer = hook.call(
                self.operation,
                {**self.request, "id": table_id, "cluster": EXTERNAL, "context": {"idempotency-key": key}},
            )
        except WireError as error:
            failure = task_error(error)
        else:
            return str(answer["job_id"])
        raise failure

    def _claim(self, hook: LanceNamespaceHook, job_id: str) -> _Claim | None:
        """Claim the job for our driver; ``None`` once it has ended by another's hand."""
        interval = read_configuration().poll_interval
        token = secrets.token_urlsafe(32)
        follower = Follower(job_id, log=lambda line: self.log.info("%s", line))
        told = False
        while True:
            failure: AirflowException | None = None
            try:
                described = hook.call("describe_job", {"job_id": job_id})
                if follower.see(Job.from_wire(described, job_id)) is not None:
                    return None
                attempt = int(described.get("attempt") or 1)
                answer = hook.call("claim_job", {"job_id": job_id, "attempt": attempt, "launch_token": token})
                return _Claim(job_id, attempt, token, str(answer["claim_token"]), float(answer["lease_seconds"]))
            except WireError as error:
                if not is_conflict(error):
                    failure = task_error(error)
                elif not told:
                    self.log.info("Another driver has job %s; waiting for its end: %s", job_id, error)
                    told = True
            if failure is not None:
                raise failure
            time.sleep(interval)

    def _drive(self, context: Context, hook: LanceNamespaceHook, job_id: str, claim: _Claim) -> None:
        """Run ``spark-submit`` to its end, with the job's progress in the task's log."""
        settings = hook.resolved.settings
        assert settings is not None
        spark = self._get_hook()
        cluster_mode = spark._connection["deploy_mode"] == "cluster"
        managed = spark._is_yarn or spark._is_kubernetes
        if cluster_mode and not managed:
            raise AirflowFailException(
                "A driver inside a standalone cluster cannot be handed its claim: Spark passes it neither files nor "
                "variables before it starts. Use deploy mode `client` on this connection."
            )
        self.application = application_path()
        self.application_args = [
            *("--job-id", job_id),
            *("--attempt", str(claim.attempt)),
            *("--namespace", self.namespace_url or settings.base_url),
        ]
        with claim.file() as token_file, _Watch(self, hook, claim):
            variables = {TOKEN_FILE_VARIABLE: token_file.name if cluster_mode else str(token_file)}
            if cluster_mode:
                self.files = ",".join(filter(None, [self.files, str(token_file)]))
            if not managed:
                variables |= _local_environment(spark._connection["spark_binary"])
            self.env_vars = {**variables, **(self.env_vars or {})}
            self._hook = self._get_hook()
            read_log = self._hook._process_spark_submit_log
            self._hook._process_spark_submit_log = (  # type: ignore[method-assign]
                lambda itr: read_log(_with_link(context, itr))
            )
            try:
                super().execute(context)
            except AirflowException as error:
                # The job's own words are better than an exit status; without any, the exit status it is.
                job = look(hook, job_id)
                if not (isinstance(job, Job) and job.state.terminal):
                    raise
                self.log.info("spark-submit says: %s", error)


def _with_link(context: Context, lines: Iterator[str]) -> Iterator[str]:
    """Pass the driver's lines on; the first that tells where Spark's UI is becomes the task's button."""
    found = False
    for line in lines:
        if not found and (match := _SPARK_UI.search(line)):
            LanceSparkLink().push(context, match[1])
            found = True
        yield line


class _Claim:
    """A claim on one job, made by this worker for its driver."""

    def __init__(self, job_id: str, attempt: int, launch_token: str, claim_token: str, lease_seconds: float) -> None:
        self.job_id = job_id
        self.attempt = attempt
        self.lease_seconds = lease_seconds
        self._launch_token = launch_token
        self._claim_token = claim_token

    @contextlib.contextmanager
    def file(self) -> Iterator[Path]:
        """The claim in a file that only this user can read, for as long as the driver runs."""
        folder = Path(tempfile.mkdtemp(prefix="lance-claim-"))  # 0700
        path = folder / f"claim-{self.job_id}.json"
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                json.dump({"launch_token": self._launch_token, "api_key": self._claim_token}, file)
            yield path
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def renew(self, hook: LanceNamespaceHook) -> None:
        """The same claim again gets the same answer and a new lease."""
        hook.call("claim_job", {"job_id": self.job_id, "attempt": self.attempt, "launch_token": self._launch_token})


class _Watch:
    """Beside ``spark-submit``: keeps the claim until the driver has taken over, and logs the job's progress."""

    def __init__(self, operator: LanceSparkSubmitOperator, hook: LanceNamespaceHook, claim: _Claim) -> None:
        self._operator = operator
        self._settings = hook.resolved.settings
        self._hook = hook
        self._claim = claim
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lance-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        interval = min(read_configuration().poll_interval, self._claim.lease_seconds / 4)
        follower = Follower(self._claim.job_id, log=lambda line: self._operator.log.info("%s", line))
        renewed = time.monotonic()
        while not self._stop.wait(interval):
            seen = look(self._hook, self._claim.job_id)
            if follower.see(seen) is not None:
                return
            taken_over = isinstance(seen, Job) and seen.progress is not None and seen.progress.fraction > 0
            if not taken_over and time.monotonic() - renewed > self._claim.lease_seconds / 3:
                with contextlib.suppress(WireError):
                    self._claim.renew(self._hook)
                renewed = time.monotonic()


def _local_environment(spark_binary: str | None) -> dict[str, str]:
    """For a driver on this machine: this Python, this package, and Java where the machine has none of its own."""
    from airflow_provider_lance.engine.java import JavaNotFoundError, java_environment

    found: dict[str, str] = {}
    with contextlib.suppress(JavaNotFoundError):
        found |= java_environment()
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if name not in os.environ:
            found[name] = sys.executable
    beside = str(Path(sys.executable).parent)
    if not shutil.which(spark_binary or "spark-submit") and shutil.which(spark_binary or "spark-submit", path=beside):
        found["PATH"] = os.pathsep.join([beside, found.get("PATH") or os.environ.get("PATH", "")])
    package = str(Path(application_path()).parents[2])
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return found

"""``LanceSparkSubmitOperator``: Airflow's own Spark connection executes a Lance job.

The only module that imports ``SparkSubmitOperator``, which costs 150 ms. The engine's application file is found
without importing the engine.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseHook

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.job_words import IDEMPOTENCY_KEY, TERMINAL_STATES, JobState
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.assets.lance import write_events
from airflow_provider_lance.configuration import DEFAULT_CONNECTION, read_configuration
from airflow_provider_lance.hooks.spark import DriverInput, LanceSparkSubmitHook
from airflow_provider_lance.links.job import LanceJobLink, LanceSparkLink
from airflow_provider_lance.operators.base import choice, log_reason, task_error
from airflow_provider_lance.operators.claim import Claim, Watch, claim_job
from airflow_provider_lance.operators.conflict import conflict_failure, job_in_the_way, wait_failure
from airflow_provider_lance.operators.kubernetes_secret import INSTALL, claim_secret, secret_conf, secret_name
from airflow_provider_lance.operators.rejoin import conclude, idempotency_key, rejoin, remember
from airflow_provider_lance.operators.rendered import mapping
from airflow_provider_lance.operators.result import (
    describe_target,
    job_failure,
    job_result,
    job_rows,
    job_table,
    job_target,
    look,
    read_job_id,
    wait_for_job,
)
from airflow_provider_lance.operators.spec import read_spec, read_storage_options, spec_run
from airflow_provider_lance.triggers.outcome import job_event

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.hooks.lance import LanceNamespaceHook

TOKEN_FILE_VARIABLE = "LANCE_JOB_TOKEN_FILE"  # noqa: S105 - the name of a variable
EXTERNAL = "external"
_SPARK_UI = re.compile(r"(?:Spark UI|tracking URL): *(https?://\S+)")  # the engine's own line, and YARN's
_CANCEL_SECONDS = 2.0  # Airflow kills a task's process 5 s after it was told to end


def application_path() -> str:
    """The engine's application file, without importing the engine."""
    package = importlib.util.find_spec("airflow_provider_lance")
    assert package is not None
    assert package.origin is not None
    return str(Path(package.origin).parent / "engine" / "app.py")


class LanceSparkSubmitOperator(SparkSubmitOperator):
    """Execute a Lance job with ``spark-submit`` through a Spark connection of Airflow.

    Give one of:

    - ``job_id``: a job that was submitted with ``cluster="external"`` and waits to be claimed;
    - ``operation`` and ``request``: the operator submits that job itself;
    - ``spec``: a job that needs no namespace server at all.

    Every other argument is ``SparkSubmitOperator``'s, such as ``conn_id``, ``conf``, ``executor_memory``, ``py_files``.

    The worker claims a namespace's job with the Lance connection. The driver gets only that claim, which is good for
    this one job while it runs: in a file that nobody else can read, or in a Kubernetes secret, never on a command line.
    A retry whose earlier driver still works waits for that driver's end instead of starting a second one.

    A spec's driver runs beside the task (deploy mode ``client``, on any master), writes its progress into the task's
    log and ends with the task. A retry continues from the checkpoints of the try before it.

    :param job_id: the job, or the dict a job operator returned. (templated)
    :param operation: ``alter_table_backfill_columns`` or ``refresh_materialized_view``.
    :param request: the operation's fields, ``id`` included. A template gives text: numbers in it need a DAG with
        ``render_template_as_native_obj=True``. (templated)
    :param spec: ``{"job_type": "backfill_column" or "refresh_materialized_view", "location": "s3://…/t.lance",
        "request": {…}}``, with ``table_id``, ``options`` and ``tables`` where they are needed; or the path of a JSON
        file with that. (templated)
    :param storage_conn_id: for a spec: the connection whose extra holds the storage options. (templated)
    :param lance_conn_id: the connection of the namespace that has the job. (templated)
    :param namespace_url: where the driver reaches the namespace, if not where Airflow does. (templated)
    :param claim_secret: for a driver inside Kubernetes: hand over the claim in a secret instead of ``--files``. The
        operator writes ``<claim_secret>-<job id>-<attempt>`` into the driver's namespace and deletes it afterwards.
        (templated)
    :param cancel_on_kill: cancel the job when the task is killed.
    :param on_conflict: for ``operation``, when another job already writes the same column or view: ``fail``, or
        ``wait`` for its end and submit then. That job is never cancelled, and never joined: its own driver executes it.
    :return: what a job operator returns.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "job_id",
        "request",
        "spec",
        "storage_conn_id",
        "lance_conn_id",
        "namespace_url",
        "claim_secret",
    )
    operator_extra_links = (LanceJobLink(), LanceSparkLink())

    def __init__(
        self,
        *,
        job_id: str | Mapping[str, Any] | None = None,
        operation: str | None = None,
        request: Mapping[str, Any] | None = None,
        spec: Mapping[str, Any] | str | None = None,
        storage_conn_id: str | None = None,
        lance_conn_id: str = DEFAULT_CONNECTION,
        namespace_url: str | None = None,
        claim_secret: str | None = None,
        cancel_on_kill: bool = True,
        on_conflict: Literal["fail", "wait"] = "fail",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("name", "lance")
        super().__init__(**kwargs)
        choice("on_conflict", on_conflict, "fail", "wait")
        # A retry asks the claim whether a driver lives. Spark's own reconnection would follow one that has lost it.
        self.durable = False
        if sum(given is not None for given in (job_id, operation, spec)) != 1:
            raise ValueError("Give either `job_id`, or `operation` and `request`, or `spec`.")
        self.job_id = job_id
        self.operation = operation
        self.request = request
        self.spec = spec
        self.storage_conn_id = storage_conn_id
        self.lance_conn_id = lance_conn_id
        self.namespace_url = namespace_url
        self.claim_secret = claim_secret
        self.cancel_on_kill = cancel_on_kill
        self.on_conflict = on_conflict
        self._lance: LanceNamespaceHook | None = None
        self._running: str | None = None
        self._killed = False
        self._driver: DriverInput | None = None
        self._read_line: Callable[[str], None] = lambda _: None

    def execute(self, context: Context) -> Any:
        BaseHook.get_connection(self._conn_id)  # SparkSubmitHook takes a missing connection for YARN, silently
        done = self._run_spec(context) if self.spec is not None else self._run_job(context)
        write_events(
            context,
            self.outlets,
            done["table_id"],
            version=done["version"],
            job_id=done["job_id"],
            rows=job_rows(done["result"]),
        )
        return done

    def on_kill(self) -> None:
        """Cancel the job and end its driver. Runs inside a signal handler, so it has a client of its own."""
        self._killed = True
        settings = self._lance.resolved.settings if self._lance is not None else None
        if self.cancel_on_kill and self._running and settings is not None:
            # Beside the rest: a namespace that does not answer must not keep the driver alive.
            thread = threading.Thread(target=self._cancel, args=(settings, self._running), daemon=True)
            thread.start()
            thread.join(_CANCEL_SECONDS)
        if self._hook is not None:
            self._hook.on_kill()

    def _cancel(self, settings: Any, job_id: str) -> None:
        from airflow_provider_lance.api.wire import Wire  # loaded: it claimed the job

        try:
            with Wire(settings) as wire:
                wire.call("cancel_job", {"job_id": job_id})
        except WireError as error:
            self.log.warning("The job could not be cancelled: %s", error)

    # A job of a namespace

    def _run_job(self, context: Context) -> dict[str, Any]:
        from airflow_provider_lance.hooks.lance import LanceNamespaceHook

        hook = self._lance = LanceNamespaceHook(self.lance_conn_id)
        if not hook.speaks_rest:
            raise AirflowFailException(
                f"A driver reaches its job over HTTP, but the connection {self.lance_conn_id!r} has no server."
            )
        spark = self._get_hook()
        if spark._connection["deploy_mode"] == "cluster" and not (spark._is_yarn or spark._is_kubernetes):
            raise AirflowFailException(
                "A driver inside a standalone cluster cannot be handed its claim: Spark passes it neither files nor "
                "variables before it starts. Use deploy mode `client` on this connection."
            )
        job_id = self._running = self._job(context, hook)
        if self._killed:  # while the request was on its way, and the job had no name yet
            self.on_kill()
            raise AirflowException(f"The task was ended before the driver of job {job_id} was started.")
        context["ti"].xcom_push(key="job_id", value=job_id)
        link = hook.job_link(job_id)
        LanceJobLink().push(context, link)
        ended: Exception | None = None
        claim = claim_job(hook, job_id, self.log)
        if claim is not None:
            with self._handed_over(spark, hook, claim) as driver, Watch(hook, claim, self.log):
                ended = self._submit(context, driver)
        job = look(hook, job_id)
        if (isinstance(job, Job) and not job.state.terminal) or (ended is not None and not isinstance(job, Job)):
            raise AirflowException(
                f"The driver of job {job_id} ended without a word; see its log above. The server gives the job back "
                f"when the driver's lease has run out, and the next try waits for that. {ended or ''}".rstrip()
            )
        if not isinstance(job, Job):
            raise AirflowException(f"How job {job_id} ended cannot be told: {job or 'the server does not know it'}")
        if ended is not None:  # the job's own words are better than an exit status
            self.log.info("spark-submit says: %s", ended)
        if job.state is not JobState.DONE:
            raise log_reason(self.log, job_failure(job_event(job), job_target(hook, job), link))
        if self.operation is not None:
            conclude(context)
        return job_result(job_id, job.job_type, job_table(hook, job), job.state.value, job.result)

    def _job(self, context: Context, hook: LanceNamespaceHook) -> str:
        """The given job, that of an earlier try, or a new one."""
        if self.operation is None:
            return read_job_id(self.job_id)
        rejoined = rejoin(context, hook, self.log)
        if rejoined is not None:
            self.log.info("Rejoined job %s of an earlier try; it is %s.", rejoined.job_id, rejoined.state.value)
            return rejoined.job_id
        request = mapping("request", self.request) or {}
        table_id = hook.parse_id(request.get("id") or "")
        entries = {
            **(request.get("context") or {}),
            IDEMPOTENCY_KEY: idempotency_key(context, self.operation, table_id),
            "lease-seconds": str(read_configuration().job_lease_seconds),
        }
        fields = {**request, "id": table_id, "cluster": EXTERNAL, "context": entries}
        ended: str | None = None
        while True:
            failure: AirflowException | None = None
            try:
                answer = hook.call(self.operation, fields)
            except WireError as error:
                other = job_in_the_way(hook, error)
                if other is None:
                    failure = task_error(error)
                elif self.on_conflict == "fail":
                    failure = conflict_failure(error, other, may_join=False)
                elif other.job_id == ended:
                    failure = wait_failure(error, other)
            else:
                job_id = self._running = str(answer["job_id"])  # from here on a kill knows what to cancel
                remember(context, job_id)
                return job_id
            if failure is not None:
                raise log_reason(self.log, failure)
            assert other is not None
            self.log.info("Job %s is in the way; waiting for its end before submitting.", other.job_id)
            event = wait_for_job(hook, other.job_id, self.log)
            ended = other.job_id if event["state"] in TERMINAL_STATES else None
            if self._killed:
                raise AirflowException("The task was ended while it waited for another job; it submitted none.")

    @contextlib.contextmanager
    def _handed_over(self, spark: SparkSubmitHook, hook: LanceNamespaceHook, claim: Claim) -> Iterator[DriverInput]:
        """What the claim's driver is given; the claim itself in a file or in a secret, for as long as this lasts."""
        settings = hook.resolved.settings
        assert settings is not None
        arguments = [
            *("--job-id", claim.job_id),
            *("--attempt", str(claim.attempt)),
            *("--namespace", self.namespace_url or settings.base_url),
        ]
        environment = _environment(spark)
        in_cluster = spark._connection["deploy_mode"] == "cluster"
        if in_cluster and spark._is_kubernetes and self.claim_secret:
            name = secret_name(self.claim_secret, claim)
            with claim_secret(name, spark._connection["namespace"] or "default", claim, self.log):
                yield DriverInput(arguments, environment, conf=secret_conf(name))
            return
        with claim.file() as file:
            if in_cluster:
                yield DriverInput(arguments, environment, {TOKEN_FILE_VARIABLE: file.name}, files=[str(file)])
            else:
                yield DriverInput(arguments, {**environment, TOKEN_FILE_VARIABLE: str(file)})

    # A spec

    def _run_spec(self, context: Context) -> dict[str, Any]:
        spec = read_spec(self.spec)
        spark = self._get_hook()
        if spark._connection["deploy_mode"] == "cluster":
            raise AirflowFailException(
                "A driver inside the cluster cannot tell this task how its spec went. Use deploy mode `client` on the "
                "Spark connection, or let a namespace server keep the job: give `operation` and `request`."
            )
        options = read_storage_options(self.storage_conn_id) if self.storage_conn_id else {}
        # The same for every try of this run: the engine finds what an earlier one left.
        job_id = f"spec-{idempotency_key(context, spec.job_type, [spec.location])[:32]}"
        context["ti"].xcom_push(key="job_id", value=job_id)
        with spec_run(spec, job_id, context["ti"].try_number, options) as run:
            ended = self._submit(context, DriverInput(run.arguments, {**_environment(spark), **run.variables}))
            job = run.answer()
        if job is None:
            raise AirflowException(f"The driver of job {job_id} ended without a word; see its log above. {ended or ''}")
        if job.state is not JobState.DONE:
            column = spec.request.get("column")
            about = describe_target(spec.table_id, column if isinstance(column, str) else None)
            raise log_reason(self.log, job_failure(job_event(job), about))
        return job_result(job_id, spec.job_type, spec.table_id, job.state.value, job.result)

    # Both

    def _submit(self, context: Context, driver: DriverInput) -> Exception | None:
        """Run ``spark-submit`` to its end; returns how it failed, because the job may know better."""
        self.application = self.application or application_path()
        self._read_line = _link_pusher(context)
        self._driver, self._hook = driver, None
        try:
            super().execute(context)
        except (AirflowException, RuntimeError) as error:
            return error
        finally:
            self._driver = None
        return None

    def _get_hook(self) -> SparkSubmitHook:
        try:
            configured = super()._get_hook()
        except NameError:  # SparkSubmitHook does not check before it uses what it could not import
            raise AirflowFailException(f"Spark on Kubernetes needs Airflow's Kubernetes provider. {INSTALL}") from None
        return configured if self._driver is None else LanceSparkSubmitHook(configured, self._driver, self._read_line)


def _link_pusher(context: Context) -> Callable[[str], None]:
    """Reads the driver's lines; the first that tells where Spark's UI is becomes the task's button."""
    found = False

    def read(line: str) -> None:
        nonlocal found
        if not found and (match := _SPARK_UI.search(line)):
            LanceSparkLink().push(context, match[1])
            found = True

    return read


def _environment(spark: SparkSubmitHook) -> dict[str, str]:
    """For ``spark-submit`` on this machine: Java and Spark where there are none, and for a driver this very Python."""
    from airflow_provider_lance.engine.java import JavaNotFoundError, java_environment
    from airflow_provider_lance.engine.session import loopback_environment

    binary = spark._connection["spark_binary"] or "spark-submit"
    found: dict[str, str] = {}
    with contextlib.suppress(JavaNotFoundError):
        found |= java_environment()
    found |= loopback_environment(spark._connection["master"] or "")
    beside = str(Path(sys.executable).parent)
    if not shutil.which(binary) and shutil.which(binary, path=beside):
        found["PATH"] = os.pathsep.join([beside, found.get("PATH") or os.environ.get("PATH", "")])
    if spark._connection["deploy_mode"] == "cluster":
        return found
    # Executors of YARN and Kubernetes have a Python of their own.
    for name in ("PYSPARK_DRIVER_PYTHON", *(() if spark._is_yarn or spark._is_kubernetes else ("PYSPARK_PYTHON",))):
        if name not in os.environ:
            found[name] = sys.executable
    package = str(Path(application_path()).parents[2])
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return found

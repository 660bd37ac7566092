"""``LanceSparkSubmitOperator``: executes a Lance job through a Spark connection of Airflow.

Only this module imports ``SparkSubmitOperator``, which takes 150 ms and comes with the extra ``spark-submit``. It finds
the engine's application file without importing the engine.
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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseHook

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.job_states import EXTERNAL, TERMINAL_STATES, TOKEN_FILE_VARIABLE, JobState
from airflow_provider_lance.api.jobs import Job, JobSpec
from airflow_provider_lance.configuration import DEFAULT_CONNECTION, read_configuration
from airflow_provider_lance.hooks.spark import DriverInput, LanceSparkSubmitHook
from airflow_provider_lance.hooks.spark_provider import SparkSubmitHook, SparkSubmitOperator
from airflow_provider_lance.links.job import LanceJobLink, LanceSparkLink
from airflow_provider_lance.tasks.conflict import find_job_to_follow
from airflow_provider_lance.tasks.driver_claim import ClaimKeeper, DriverClaim, claim_job
from airflow_provider_lance.tasks.errors import log_failure
from airflow_provider_lance.tasks.job_follower import poll_job, wait_for_job
from airflow_provider_lance.tasks.job_outcome import (
    JobResult,
    describe_target,
    ended_event,
    job_failure,
    job_result,
    job_summary,
    job_table,
    job_target,
    written_rows,
)
from airflow_provider_lance.tasks.job_spec import open_spec_run, read_spec, read_storage_options
from airflow_provider_lance.tasks.kubernetes_secret import INSTALL, claim_secret, secret_conf, secret_name
from airflow_provider_lance.tasks.outlets import drop_other_tables, is_mapped, publish_change
from airflow_provider_lance.tasks.rejoin import idempotency_key, mark_concluded, rejoin, save_job, submit_context
from airflow_provider_lance.tasks.templating import as_mapping, choice, read_job_id

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.api.settings import Settings
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook
    from airflow_provider_lance.tasks.lineage import TaskLineage
    from airflow_provider_lance.tasks.templating import TaskOutput

OnSparkConflict = Literal["fail", "wait"]
# The engine writes the first of these lines, and YARN the second.
_SPARK_UI = re.compile(r"(?:Spark UI|tracking URL): *(https?://\S+)")
# Airflow kills a task's process 5 s after it sent the signal to end.
_CANCEL_SECONDS = 2.0


def application_path() -> str:
    """The path of the engine's application file, found without importing the engine."""
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

    Every other argument is one of ``SparkSubmitOperator``, such as ``conn_id``, ``conf``, ``executor_memory`` and
    ``py_files``.

    The worker claims a job of a namespace with the Lance connection. The driver gets only that claim, which is valid
    for this job while it runs. It gets the claim in a file that nobody else can read, or in a Kubernetes secret, and
    never on a command line. If the driver of an earlier try still works, a retry waits for its end.

    The driver of a spec runs beside the task, in deploy mode ``client`` on any master. It writes its progress into the
    task's log and ends with the task. A retry continues from the checkpoints of the try before it.

    The guide is ``docs/operators/spark_submit.md``.

    :param job_id: The job's id, or the dict that a job operator returned. (templated)
    :param operation: The operation to submit: ``alter_table_backfill_columns``, ``refresh_materialized_view`` or
        ``write_table``.
    :param request: The operation's fields with its ``id``. A template renders to text, so numbers in it need a DAG with
        ``render_template_as_native_obj=True``. (templated)
    :param spec: A job without a server, as a dict or as the path of a JSON file: ``{"job_type": "backfill_column",
        "refresh_materialized_view" or "write", "location": "s3://…/t.lance", "request": {…}}``, with ``table_id``,
        ``options`` and ``tables`` where they are needed. (templated)
    :param storage_conn_id: The id of the connection whose extra holds the storage options of a spec. (templated)
    :param lance_conn_id: The id of the connection of the namespace that has the job. (templated)
    :param namespace_url: The address at which the driver reaches the namespace, if it is not the connection's.
        (templated)
    :param claim_secret: The beginning of the name of a Kubernetes secret, in which a driver inside Kubernetes gets its
        claim. The operator writes ``<claim_secret>-<job id>-<attempt>`` into the driver's namespace and deletes it
        afterwards. Without it the claim is shipped with ``--files``. (templated)
    :param cancel_on_kill: Whether the job is cancelled when the task is killed.
    :param on_conflict: What happens with ``operation`` if another job already writes the same column or view. ``fail``
        fails the task, and ``wait`` waits for the end of that job and then submits. That job is never cancelled.
    :return: The dict that a job operator returns.
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
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **SparkSubmitOperator.template_fields_renderers,
        "request": "json",
        "spec": "json",
    }
    operator_extra_links = (LanceJobLink(), LanceSparkLink())

    def __init__(
        self,
        *,
        job_id: str | TaskOutput | None = None,
        operation: str | None = None,
        request: Mapping[str, object] | str | None = None,
        spec: Mapping[str, object] | str | None = None,
        storage_conn_id: str | None = None,
        lance_conn_id: str = DEFAULT_CONNECTION,
        namespace_url: str | None = None,
        claim_secret: str | None = None,
        cancel_on_kill: bool = True,
        on_conflict: OnSparkConflict = "fail",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("name", "lance")
        super().__init__(**kwargs)
        # SparkSubmitOperator would reconnect to the driver of an earlier try, even if that driver has lost its claim.
        self.durable = False
        if sum(source is not None for source in (job_id, operation, spec)) != 1:
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
        self.on_conflict = choice("on_conflict", on_conflict, OnSparkConflict)
        self._lance: LanceNamespaceHook | None = None
        self._running: str | None = None
        self._killed = False
        self._done: JobResult | None = None
        self._written: JobSpec | None = None
        self._driver: DriverInput | None = None
        self._read_line: Callable[[str], None] = lambda _: None

    def execute(self, context: Context) -> JobResult:  # type: ignore[override] # SparkSubmitOperator returns nothing
        BaseHook.get_connection(
            self._conn_id
        )  # it raises for a missing connection, which SparkSubmitHook takes for YARN
        done = self._done = self._run_spec(context) if self.spec is not None else self._run_job(context)
        self.log.info("%s", job_summary(join_id(done["table_id"]), done["job_id"], done["result"]))
        from airflow_provider_lance.hooks.lance import LanceNamespaceHook

        if is_mapped(context):
            drop_other_tables(self, [done["table_id"]])
        publish_change(
            self,
            context,
            self._lance or LanceNamespaceHook(self.lance_conn_id),
            done["table_id"],
            version=done["version"],
            job_id=done["job_id"],
            rows=written_rows(done["result"]),
        )
        return done

    def get_openlineage_facets_on_complete(self, task_instance: TaskInstance) -> TaskLineage | None:
        """The lineage for Airflow's OpenLineage provider: that of the operator which starts the same kind of job."""
        from airflow_provider_lance.tasks.lineage import job_lineage, lineage_facets, located_facets

        if self._done is None or self._written is None:
            return None
        version, rows = self._done["version"], written_rows(self._done["result"])
        spec = self._written
        if self._lance is None:
            return located_facets(self.outlets, spec.table_id, spec.location, version=version, rows=rows)
        lineage = job_lineage(self._lance, spec)
        return lineage_facets(self._lance, [*self.outlets, *self.inlets], replace(lineage, version=version, rows=rows))

    def on_kill(self) -> None:
        """Cancel the job and end its driver. Airflow calls this in a signal handler, so it uses a client of its own."""
        self._killed = True
        settings = self._lance.resolved.settings if self._lance is not None else None
        if self.cancel_on_kill and self._running and settings is not None:
            # It runs in a thread, because a namespace that does not answer must not keep the driver alive.
            thread = threading.Thread(target=self._cancel, args=(settings, self._running), daemon=True)
            thread.start()
            thread.join(_CANCEL_SECONDS)
        if self._hook is not None:
            self._hook.on_kill()

    def _cancel(self, settings: Settings, job_id: str) -> None:
        # The module is loaded already: the job was claimed with it.
        from airflow_provider_lance.api.http.wire import Wire

        try:
            with Wire(settings) as wire:
                wire.call("cancel_job", {"job_id": job_id})
        except WireError as error:
            self.log.warning("The job could not be cancelled: %s", error)

    # A job of a namespace

    def _run_job(self, context: Context) -> JobResult:
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
        job_id = self._running = self.find_or_submit_job(context, hook)
        if self._killed:  # the kill came before the job's id was known
            self.on_kill()
            raise AirflowException(f"The task was ended before the driver of job {job_id} was started.")
        context["ti"].xcom_push(key="job_id", value=job_id)
        link = hook.job_link(job_id)
        LanceJobLink().push(context, link)
        ended: Exception | None = None
        claim = claim_job(hook, job_id, self.log)
        if claim is not None:
            with self._hand_over(spark, hook, claim) as driver, ClaimKeeper(hook, claim, self.log):
                ended = self._submit(context, driver)
        job = poll_job(hook, job_id)
        if (isinstance(job, Job) and not job.state.terminal) or (ended is not None and not isinstance(job, Job)):
            raise AirflowException(
                f"The driver of job {job_id} ended without a word; see its log above. The server gives the job back "
                f"when the driver's lease has run out, and the next try waits for that. {ended or ''}".rstrip()
            )
        if not isinstance(job, Job):
            raise AirflowException(f"How job {job_id} ended cannot be told: {job or 'the server does not know it'}")
        if ended is not None:  # the job's own failure says more than an exit status
            self.log.info("spark-submit says: %s", ended)
        if job.state is not JobState.DONE:
            raise log_failure(self.log, job_failure(ended_event(job), job_target(hook, job), link))
        if self.operation is not None:
            mark_concluded(context)
        self._written = JobSpec(job.job_type, job_table(hook, job), "", request=dict(job.spec.get("request") or {}))
        return job_result(job_id, job.job_type, job_table(hook, job), job.state.value, job.result)

    def find_or_submit_job(self, context: Context, hook: LanceNamespaceHook) -> str:
        """The id of the given job, of the job of an earlier try, or of a new job."""
        if self.operation is None:
            return read_job_id(self.job_id)
        rejoined = rejoin(context, hook, self.log)
        if rejoined is not None:
            return rejoined.job_id
        request = as_mapping("request", self.request) or {}
        table_id = hook.parse_id(request.get("id") or "")
        lease_seconds = read_configuration().job_lease_seconds
        entries = {
            **(request.get("context") or {}),
            **submit_context(context, self.operation, table_id, lease_seconds),
        }
        fields = {**request, "id": table_id, "cluster": EXTERNAL, "context": entries}
        waited_for: str | None = None
        while True:
            try:
                answer = hook.call(self.operation, fields)
            except WireError as error:
                refused = error
            else:
                job_id = self._running = str(answer["job_id"])  # from here on a kill cancels the job
                save_job(context, job_id)
                return job_id
            other = find_job_to_follow(hook, refused, self.log, on_conflict=self.on_conflict, waited_for=waited_for)
            self.log.info("Job %s is in the way; waiting for its end before submitting.", other.job_id)
            event = wait_for_job(hook, other.job_id, self.log)
            waited_for = other.job_id if event["state"] in TERMINAL_STATES else None
            if self._killed:
                raise AirflowException("The task was ended while it waited for another job; it submitted none.")

    @contextlib.contextmanager
    def _hand_over(self, spark: SparkSubmitHook, hook: LanceNamespaceHook, claim: DriverClaim) -> Iterator[DriverInput]:
        """The input of the claim's driver. The file or secret with the claim exists only inside the context."""
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

    def _run_spec(self, context: Context) -> JobResult:
        spec = read_spec(self.spec)
        spark = self._get_hook()
        if spark._connection["deploy_mode"] == "cluster":
            raise AirflowFailException(
                "A driver inside the cluster cannot tell this task how its spec went. Use deploy mode `client` on the "
                "Spark connection, or let a namespace server keep the job: give `operation` and `request`."
            )
        options = read_storage_options(self.storage_conn_id) if self.storage_conn_id else {}
        # The id is the same for every try of this run, so that the engine finds the checkpoints of an earlier try.
        job_id = f"spec-{idempotency_key(context, spec.job_type, [spec.location])[:32]}"
        context["ti"].xcom_push(key="job_id", value=job_id)
        with open_spec_run(spec, job_id, context["ti"].try_number, options) as run:
            ended = self._submit(context, DriverInput(run.arguments, {**_environment(spark), **run.variables}))
            job = run.answer()
        if job is None:
            raise AirflowException(f"The driver of job {job_id} ended without a word; see its log above. {ended or ''}")
        if job.state is not JobState.DONE:
            target = describe_target(join_id(spec.table_id), spec.request.get("column"))
            raise log_failure(self.log, job_failure(ended_event(job), target))
        self._written = spec
        return job_result(job_id, spec.job_type, spec.table_id, job.state.value, job.result)

    # Both

    def _submit(self, context: Context, driver: DriverInput) -> Exception | None:
        """Run ``spark-submit`` to its end. Its error is returned, because the job's own failure may say more."""
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
        except NameError:  # SparkSubmitHook uses the Kubernetes client without checking that it could import it
            raise AirflowFailException(f"Spark on Kubernetes needs Airflow's Kubernetes provider. {INSTALL}") from None
        return configured if self._driver is None else LanceSparkSubmitHook(configured, self._driver, self._read_line)


def _link_pusher(context: Context) -> Callable[[str], None]:
    """A function that reads the driver's lines and pushes the address of Spark's UI, once a line has it."""
    found = False

    def read(line: str) -> None:
        nonlocal found
        if not found and (match := _SPARK_UI.search(line)):
            LanceSparkLink().push(context, match[1])
            found = True

    return read


def _environment(spark: SparkSubmitHook) -> dict[str, str]:
    """The variables of ``spark-submit`` on this machine: where Java, Spark and a driver's Python are."""
    from airflow_provider_lance.engine.spark.java_home import JavaNotFoundError, java_environment
    from airflow_provider_lance.engine.spark.session import loopback_environment

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
    # The executors of YARN and Kubernetes have a Python of their own.
    for name in ("PYSPARK_DRIVER_PYTHON", *(() if spark._is_yarn or spark._is_kubernetes else ("PYSPARK_PYTHON",))):
        if name not in os.environ:
            found[name] = sys.executable
    package = str(Path(application_path()).parents[2])
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return found

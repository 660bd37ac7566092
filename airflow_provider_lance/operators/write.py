"""``LanceWriteOperator``: load rows into a table, and ``write_rows`` for the same inside of a task of your own.

The worker writes the rows itself, or a job of the server does, on Spark.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack, cast

from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import Identifier
from airflow_provider_lance.api.job_states import JobType
from airflow_provider_lance.definitions.write_request import ROWS_PER_FILE, WriteMode, check_mode
from airflow_provider_lance.operators.base import table_facets
from airflow_provider_lance.operators.job_base import LanceJobOperator, Submitted
from airflow_provider_lance.tasks.errors import log_failure, task_error
from airflow_provider_lance.tasks.operator_arguments import JobArguments
from airflow_provider_lance.tasks.outlets import publish_change
from airflow_provider_lance.tasks.rejoin import idempotency_key
from airflow_provider_lance.tasks.table_writer import Way, WriteOrder, Written, write_table
from airflow_provider_lance.tasks.templating import as_integer, choice, none_if_blank, parse_literal

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook
    from airflow_provider_lance.storage.input_files import ObjectPath
    from airflow_provider_lance.tasks.errors import TaskLog
    from airflow_provider_lance.tasks.job_outcome import JobResult
    from airflow_provider_lance.tasks.lineage import TaskLineage

STATE_KEY = "lance_write"
# Airflow 3.2 keeps no state from try to try: there a later try looks back this many versions for its own commit.
_VERSIONS_LOOKED_AT = 1000
_FIGURES = ("rows_inserted", "rows_updated", "rows_deleted", "created")
_DONE = {"append": "appended", "overwrite": "written", "upsert": "upserted", "create": "written"}


class LanceWriteOperator(LanceJobOperator):
    """Write rows into a table: append them, replace all rows, update and insert by key, or create the table.

    The guide is ``docs/operators/write.md``.

    Give exactly one of ``data`` and ``path``. A table that is not there is created, with stable row ids, so that views
    follow its changes. The rows go straight to the table's storage where the worker reaches it, and through the server
    otherwise. All of them become visible in one version. A task that is tried again finds what an earlier try of the
    same run committed and does not write it twice; a task that was cleared writes again.

    With ``cluster`` a job of the server loads the files of ``path``, on Spark where they are large. The task waits for
    it as every job operator does, with the arguments from ``wait_for_completion`` on.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param path: A file, a folder or a pattern such as ``s3://bucket/day={{ ds }}/*.parquet`` that the worker can read,
        or an ``ObjectStoragePath`` of Airflow. (templated)
    :param data: Arrow, pandas or polars data, a list of dicts, the output of another task, or a function that is called
        on the worker and returns one of these. (templated)
    :param file_format: The format of ``path``: ``parquet``, ``csv``, ``json``, ``arrow`` or ``lance``. By default it is
        read from the ending of the path.
    :param mode: ``append`` adds the rows. ``overwrite`` replaces all rows and keeps the columns and their rules.
        ``upsert`` updates rows with an equal key and inserts the others. ``create`` fails if the table is there.
        (templated)
    :param on: The key columns of ``upsert``. (templated)
    :param replace_schema: With ``overwrite``, give the table the columns of the rows. Rules and indices are gone then.
    :param branch: The branch of the table that is written to; the main branch by default. (templated)
    :param max_rows_per_file: The most rows of one data file.
    :param way: ``auto`` chooses; ``storage`` and ``server`` insist on one way.
    :param cluster: Load the files of ``path`` by a job on this cluster: a name from the server's configuration, or
        ``external``. The driver and its Spark tasks read the files with their own credentials. (templated)
    :param concurrency: How many Spark tasks of the job run at once. (templated)
    :param wait_for_completion: Whether the task waits for the job's end. Otherwise it succeeds with the ``job_id``,
        for a :class:`~airflow_provider_lance.sensors.job.LanceJobSensor`, and the job has no lease.
    :param deferrable: Whether the task waits in the triggerer instead of on a worker. The default is ``[operators]
        default_deferrable`` of Airflow's configuration.
    :param poll_interval: The seconds between two polls of the job. The default is ``[lance] poll_interval``.
    :param timeout: How long the job may take, counted from its submission. The default is ``execution_timeout``. The
        job is cancelled after that, and the task fails with a timeout, on a worker as well as deferred.
    :param cancel_on_kill: Whether the job is cancelled when the task is killed, cleared or marked.
    :param on_conflict: What happens if another job already replaces or upserts the rows of the table. ``fail`` fails
        the task. ``join`` waits for that job and takes its result if its request is equal, and fails otherwise.
        ``wait`` waits for its end, within ``timeout``, and then submits. That job is never cancelled.
    :param lease_seconds: The seconds after which the server ends a job that nobody has asked about. The default is
        ``[lance] job_lease_seconds``.
    :param skip_if_unchanged: Whether the task ends as skipped when the job has written and removed no row.
    :param request_context: More context entries of the request, which are sent as ``x-lance-ctx-<key>``. (templated)
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``table_id``, ``version``, ``rows_inserted``, ``rows_updated``, ``rows_deleted`` and
        ``created``; with ``cluster`` also with ``job_id``, ``job_type``, ``state`` and the job's ``result``.
    """

    operation = "write_table"
    job_type = JobType.WRITE.value
    template_fields: Sequence[str] = (
        *LanceJobOperator.template_fields,
        "path",
        "data",
        "mode",
        "on",
        "branch",
        "cluster",
        "concurrency",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **LanceJobOperator.template_fields_renderers,
        "data": "json",
    }

    def __init__(
        self,
        *,
        path: str | ObjectPath | None = None,
        data: object = None,
        file_format: str | None = None,
        mode: WriteMode = "append",
        on: str | Sequence[str] | None = None,
        replace_schema: bool = False,
        branch: str | None = None,
        max_rows_per_file: int = ROWS_PER_FILE,
        way: Way = "auto",
        cluster: str | None = None,
        concurrency: int | str | None = None,
        **kwargs: Unpack[JobArguments],
    ) -> None:
        super().__init__(**kwargs)
        if (path is None) == (data is None):
            raise ValueError("Give exactly one of `path` and `data`.")
        choice("way", way, Way)
        if "{{" not in str(mode):
            check_mode(mode, on, replace_schema=replace_schema)
        if cluster is not None:
            _check_job(path, way)
        elif concurrency is not None or not self.wait_for_completion:
            raise ValueError("`concurrency` and `wait_for_completion=False` are for a job: give `cluster`, too.")
        self.path = path
        # Airflow calls a function in a template field with its context, so that functions are kept elsewhere.
        self.function = data if callable(data) and not hasattr(data, "resolve") else None
        self.data = None if self.function is not None else data
        self.file_format = file_format
        self.mode = mode
        self.on = on
        self.replace_schema = replace_schema
        self.branch = branch
        self.max_rows_per_file = max_rows_per_file
        self.way = way
        self.cluster = cluster
        self.concurrency = concurrency

    def execute(self, context: Context) -> JsonObject | JobResult:  # type: ignore[override] # without a job: no job's result
        if none_if_blank(self.cluster) is not None:
            return super().execute(context)
        return self._write_here(context)

    def request(self) -> dict[str, object]:
        fields = {
            "path": str(self.path),
            "file_format": self.file_format,
            "mode": self.mode,
            "on": list(_names(self.on)) or None,
            "replace_schema": self.replace_schema or None,
            "branch": none_if_blank(self.branch),
            "max_rows_per_file": self.max_rows_per_file,
            "cluster": self.cluster,
            "concurrency": as_integer("concurrency", self.concurrency),
        }
        return {name: value for name, value in fields.items() if value is not None}

    def did_nothing(self, result: JsonObject) -> bool:
        return result.get("rows_written") == 0 and not result.get("rows_deleted")

    def describe_result(self, submitted: Submitted, state: str, result: JsonObject | None) -> JobResult:
        figures = {name: (result or {}).get(name) for name in _FIGURES}
        return cast("JobResult", {**figures, **super().describe_result(submitted, state, result)})

    def _write_here(self, context: Context) -> JsonObject:
        """Write the rows from this worker."""
        from airflow_provider_lance.tasks.row_source import RowSource

        table_id = self.parse_id(self.table_id)
        try:
            check_mode(self.mode, self.on, replace_schema=self.replace_schema)
            order = WriteOrder(
                table_id=table_id,
                rows=RowSource(self.function or parse_literal(self.data), self.path, self.file_format),
                mode=self.mode,
                on=_names(self.on),
                branch=none_if_blank(self.branch),
                replace_schema=self.replace_schema,
                max_rows_per_file=self.max_rows_per_file,
                way=self.way,
            )
            began = time.monotonic()
            written = _write(self.hook, order, context, self.log)
        except (WireError, ValueError) as error:
            raise log_failure(self.log, task_error(error)) from error
        except OSError as error:
            raise log_failure(
                self.log, AirflowException(f"Writing {self.hook.join_id(table_id)} failed: {error}")
            ) from error
        self.log.info("%s in %.1f s.", summary(self.hook, order, written), time.monotonic() - began)
        result = answer(order, written)
        self.publish(
            context, table_id, version=result["version"], rows=written.result.inserted + written.result.updated
        )
        return result

    def get_openlineage_facets_on_complete(self, task_instance: TaskInstance) -> TaskLineage | None:
        """The lineage for Airflow's OpenLineage provider: the table, and the files that its rows came from."""
        return table_facets(self, self.path, none_if_blank(self.branch))


def write_rows(
    namespace_hook: LanceNamespaceHook,
    table_id: Identifier,
    data: object,
    *,
    mode: WriteMode = "append",
    on: str | Sequence[str] | None = None,
    replace_schema: bool = False,
    branch: str | None = None,
) -> JsonObject:
    """Write rows from inside of a running task, with the promise of :class:`LanceWriteOperator`: a retry writes once.

    One task may call it once for each table and mode.

    :param namespace_hook: The hook of the connection, ``LanceNamespaceHook("lance_default")``.
    :param table_id: The identifier of the table.
    :param data: Rows as for the operator's ``data``.
    :param mode: What happens to rows that are there, as for the operator.
    :param on: The key columns of ``upsert``.
    :param replace_schema: With ``overwrite``, give the table the columns of the rows.
    :param branch: The branch of the table; the main branch by default.
    :return: What the operator returns.
    """
    from airflow.sdk import get_current_context

    from airflow_provider_lance.hooks.table_use import TableUse
    from airflow_provider_lance.tasks.row_source import RowSource

    check_mode(mode, on, replace_schema=replace_schema)
    order = WriteOrder(
        namespace_hook.parse_id(table_id),
        RowSource(data),
        mode=mode,
        on=_names(on),
        replace_schema=replace_schema,
        branch=branch,
    )
    context = get_current_context()
    try:
        written = _write(namespace_hook, order, context, namespace_hook.log)
    except WireError as error:
        raise task_error(error) from error
    namespace_hook.log.info("%s.", summary(namespace_hook, order, written))
    result = answer(order, written)
    namespace_hook.report_use(TableUse(tuple(order.table_id), changes=True))
    rows = written.result.inserted + written.result.updated
    publish_change(context["task"], context, namespace_hook, order.table_id, version=result["version"], rows=rows)
    return result


def _write(hook: LanceNamespaceHook, order: WriteOrder, context: Context, log: TaskLog) -> Written:
    """Write once for each run of the task: note the table's version first, so that another try knows where to look."""
    key = idempotency_key(context, f"write:{order.mode}:{order.branch or ''}", order.table_id)
    return write_table(hook, order, key=key, after=_begin(hook, order, context, key), log=log)


def _begin(hook: LanceNamespaceHook, order: WriteOrder, context: Context, key: str) -> int | None:
    """The version after which an earlier try of this run may have committed; None in the first try."""
    store, ti = context.get("task_state_store"), context["ti"]
    if store is None:
        if ti.try_number <= 1:
            return None
        return max(0, _version(hook, order) - _VERSIONS_LOOKED_AT)
    noted = store.get(STATE_KEY)
    marks = dict(noted) if isinstance(noted, dict) else {}
    version = marks.get(key)
    if isinstance(version, int):
        return version
    store.set(STATE_KEY, {**marks, key: _version(hook, order)})
    return None


def _version(hook: LanceNamespaceHook, order: WriteOrder) -> int:
    from airflow_provider_lance.api.codes import ErrorCode

    try:
        return hook.current_version(order.table_id, order.branch) or 0
    except WireError as error:
        if error.code == ErrorCode.TABLE_NOT_FOUND:
            return 0
        raise


def summary(hook: LanceNamespaceHook, order: WriteOrder, written: Written) -> str:
    """One line of what was done, such as ``articles: 20,000 rows appended as version 7``."""
    result = written.result
    if order.mode == "upsert" and not written.created:
        rows = f"{result.inserted:,} rows inserted and {result.updated:,} updated"
    else:
        rows = f"{result.inserted:,} rows {_DONE[order.mode]}"
    new = " of a new table" if written.created else ""
    through = "" if written.way == "storage" else " through the server"
    return f"{hook.join_id(order.table_id)}: {rows} as version {result.version}{new}{through}"


def answer(order: WriteOrder, written: Written) -> JsonObject:
    """What a task returns for a write."""
    result = written.result
    return {
        "table_id": order.table_id,
        "version": result.version,
        "rows_inserted": result.inserted,
        "rows_updated": result.updated,
        "rows_deleted": result.deleted,
        "created": written.created,
    }


def _check_job(path: str | ObjectPath | None, way: str) -> None:
    if not isinstance(path, str):
        raise ValueError(
            "`cluster` loads the files of a `path`, which is text: a job has neither the rows of this worker nor its "
            "connections."
        )
    if way != "auto":
        raise ValueError(f"`way` is for rows that the worker writes; with `cluster` it cannot be {way!r}.")


def _names(on: str | Sequence[str] | None) -> tuple[str, ...]:
    found = parse_literal(on)
    if isinstance(found, Sequence) and not isinstance(found, str):
        return tuple(str(name) for name in found)
    return () if found is None else (str(found),)

"""``LanceOperator``: runs any operation of the Lance namespace API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

from airflow_provider_lance.api.operations import OPERATIONS, Answer, Body, unknown_operation
from airflow_provider_lance.operators.base import LanceBaseOperator
from airflow_provider_lance.tasks.operator_arguments import LanceArguments
from airflow_provider_lance.tasks.rejoin import requester_context
from airflow_provider_lance.tasks.templating import as_mapping

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.api.arrow import ArrowData
    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.tasks.templating import TaskOutput


class LanceOperator(LanceBaseOperator):
    """Run one operation of the Lance namespace API and return its answer.

    >>> LanceOperator(
    ...     task_id="index",
    ...     operation="create_table_index",
    ...     request={"id": "sales$orders", "column": "embedding", "index_type": "IVF_PQ", "distance_type": "l2"},
    ... )

    An operation that starts a job returns its ``job_id``; a ``LanceJobSensor`` waits for it.

    The guide is ``docs/operators/operation.md``.

    :param operation: The operation's name in snake case, as ``lance_namespace.LanceNamespace`` has it.
    :param request: The request's fields. Its ``id`` may be a string with the connection's delimiter. A template renders
        to text, so numbers in it need a DAG with ``render_template_as_native_obj=True``. (templated)
    :param data: A function that returns Arrow data, for the operations that take some. It is called on the worker.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: The answer as a dict. An answer in Arrow format becomes a list of rows in ``rows``, so it should be small.
    """

    template_fields: Sequence[str] = (*LanceBaseOperator.template_fields, "request")
    template_fields_renderers: ClassVar[dict[str, str]] = {"request": "json"}

    def __init__(
        self,
        *,
        operation: str,
        request: TaskOutput | str | None = None,
        data: Callable[[], ArrowData] | None = None,
        **kwargs: Unpack[LanceArguments],
    ) -> None:
        super().__init__(**kwargs)
        if operation not in OPERATIONS:
            raise ValueError(unknown_operation(operation))
        if (data is not None) != (OPERATIONS[operation].body is Body.ARROW):
            raise ValueError(f"{operation} takes {'Arrow data: give `data`' if data is None else 'no Arrow data'}.")
        self.operation = operation
        self.request = request
        self.data = data

    def execute(self, context: Context) -> JsonObject:
        request = as_mapping("request", self.request) or {}
        if OPERATIONS[self.operation].submits_job:
            request = {**request, "context": {**requester_context(context), **(request.get("context") or {})}}
        answer = self.call(self.operation, request, self.data() if self.data is not None else None)
        if OPERATIONS[self.operation].answer in {Answer.ARROW_FILE, Answer.ARROW_STREAM}:
            from airflow_provider_lance.api.arrow import read_arrow

            answer = {"rows": read_arrow(answer.get("value") or answer.get("data") or b"").to_pylist()}
        version = answer.get("version")
        version = version.get("version") if isinstance(version, Mapping) else version
        if request.get("id") and version is not None:
            table_id = self.hook.parse_id(request["id"])
            self.log.info("%s: %s is done, version %s.", self.hook.join_id(table_id), self.operation, version)
            self.publish(context, table_id, version=version)
        else:
            about = f"{self.hook.join_id(self.hook.parse_id(request['id']))}: " if request.get("id") else ""
            self.log.info("%s%s is done.", about, self.operation)
        return answer

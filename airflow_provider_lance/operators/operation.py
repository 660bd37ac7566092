"""``LanceOperator``: every operation of the Lance namespace API that has no operator of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_lance.api.operations import OPERATIONS, Answer, Body, unknown_operation
from airflow_provider_lance.operators.base import LanceBaseOperator
from airflow_provider_lance.operators.rendered import mapping

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class LanceOperator(LanceBaseOperator):
    """Run one operation and return its answer.

    >>> LanceOperator(
    ...     task_id="index",
    ...     operation="create_table_index",
    ...     request={"id": "sales$orders", "column": "embedding", "index_type": "IVF_PQ", "distance_type": "l2"},
    ... )

    An operation that starts a job returns its ``job_id``; a ``LanceJobSensor`` waits for it. An answer in Arrow format
    becomes a list of rows, so keep it small.

    :param operation: its name in snake case, as ``lance_namespace.LanceNamespace`` has it.
    :param request: the request's fields; ``id`` may be a string with the delimiter. A template gives text: numbers in
        it need a DAG with ``render_template_as_native_obj=True``. (templated)
    :param data: a function that returns Arrow data, for the operations that take some; called on the worker.
    """

    template_fields: Sequence[str] = (*LanceBaseOperator.template_fields, "request")
    template_fields_renderers: ClassVar[dict[str, str]] = {"request": "json"}

    def __init__(
        self,
        *,
        operation: str,
        request: Mapping[str, Any] | None = None,
        data: Callable[[], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if operation not in OPERATIONS:
            raise ValueError(unknown_operation(operation))
        if (data is not None) != (OPERATIONS[operation].body is Body.ARROW):
            raise ValueError(f"{operation} takes {'Arrow data: give `data`' if data is None else 'no Arrow data'}.")
        self.operation = operation
        self.request = request
        self.data = data

    def execute(self, context: Context) -> dict[str, Any]:
        request = mapping("request", self.request) or {}
        answer = self.answer(self.operation, request, self.data() if self.data is not None else None)
        if OPERATIONS[self.operation].answer in {Answer.ARROW_FILE, Answer.ARROW_STREAM}:
            from airflow_provider_lance.api.arrow import read_arrow

            answer = {"rows": read_arrow(answer.get("value") or answer.get("data") or b"").to_pylist()}
        version = answer.get("version")
        version = version.get("version") if isinstance(version, Mapping) else version
        if request.get("id") and version is not None:
            about = "$".join(self.hook.parse_id(request["id"]))
            self.log.info("%s of %s is done, version %s.", self.operation, about, version)
            self.publish(context, self.hook.parse_id(request["id"]), version=version)
        return answer

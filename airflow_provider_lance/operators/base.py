"""What every Lance operator has: the hook, one way to call an operation, errors Airflow understands, asset events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseOperator

from airflow_provider_lance.api.errors import INVALID_INPUT, WireError
from airflow_provider_lance.api.ids import Identifier, InvalidIdentifierError
from airflow_provider_lance.assets.lance import write_events
from airflow_provider_lance.configuration import DEFAULT_CONNECTION
from airflow_provider_lance.hooks.reasons import failure_lines, hopeless

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.hooks.lance import LanceNamespaceHook


_Failure = TypeVar("_Failure", bound=BaseException)


def task_error(error: WireError | ValueError) -> AirflowException:
    """A failed request as a task's failure: the reason in the first line, the operation and its codes below.

    There is no other try where the same request can only fail again.
    """
    if not isinstance(error, WireError):
        return AirflowFailException(str(error))
    final = error.code == INVALID_INPUT or hopeless(error)
    return (AirflowFailException if final else AirflowException)(failure_lines(error))


def log_reason(log: Any, failure: _Failure) -> _Failure:
    """Say why a task is about to fail, each line of it as an ERROR of its own; returns the failure, to be raised.

    Airflow shows an exception behind its class and its module, where the reason is outside of the window.
    """
    for line in filter(None, str(failure).splitlines()):
        log.error("%s", line)
    return failure


def read_table_id(hook: LanceNamespaceHook, identifier: Identifier, task_id: str) -> list[str]:
    """The identifier of the table a task is about, as a list; what names none fails the task for good."""
    try:
        parts = hook.parse_id(identifier)
    except InvalidIdentifierError as error:
        raise task_error(error) from None
    if not parts:
        raise AirflowFailException(f"Task {task_id} names no table: its identifier is empty.")
    return parts


def choice(name: str, value: str, *choices: str) -> None:
    """Refuse a word that is none of the choices, while the DAG is parsed."""
    if value not in choices:
        words = [repr(word) for word in choices]
        raise ValueError(f"{name} is {', '.join(words[:-1])} or {words[-1]}, not {value!r}.")


class LanceBaseOperator(BaseOperator):
    """The common part of all operators; not for use in a DAG.

    :param lance_conn_id: the connection of the namespace.
    """

    ui_color = "#fde8d7"
    template_fields: Sequence[str] = ("lance_conn_id",)

    def __init__(self, *, lance_conn_id: str = DEFAULT_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lance_conn_id = lance_conn_id

    @cached_property
    def hook(self) -> LanceNamespaceHook:
        from airflow_provider_lance.hooks.lance import LanceNamespaceHook

        return LanceNamespaceHook(self.lance_conn_id)

    def parse_id(self, identifier: Identifier) -> list[str]:
        """A table's or view's identifier as a list; the root namespace is not one."""
        return read_table_id(self.hook, identifier, self.task_id)

    def call(
        self, operation: str, fields: Mapping[str, Any], data: Any = None, *, tolerate: Sequence[int] = ()
    ) -> dict[str, Any] | None:
        """Run an operation; ``None`` where the answer was one of the tolerated Lance error codes."""
        failure: AirflowException
        try:
            return self.hook.call(operation, fields, data)
        except WireError as error:
            if error.code in tolerate:
                return None
            failure = task_error(error)
        raise log_reason(self.log, failure)  # outside of the except block: a chained frame could show header values

    def answer(self, operation: str, fields: Mapping[str, Any], data: Any = None) -> dict[str, Any]:
        """The same for callers that tolerate nothing."""
        answer = self.call(operation, fields, data)
        assert answer is not None
        return answer

    def publish(self, context: Context, table_id: Sequence[str], **extra: Any) -> None:
        """Write ``extra`` to the events of those declared outlets that are this table; adds no outlet of its own."""
        write_events(context, self.outlets, table_id, **extra)

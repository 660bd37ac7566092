"""``@task.lance``: a Python function that gets a connected namespace as its keyword ``namespace``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import DecoratedOperator, task_decorator_factory
from airflow.providers.standard.operators.python import PythonOperator

from airflow_provider_lance.api.vended import without_credentials
from airflow_provider_lance.configuration import DEFAULT_CONNECTION

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, TaskDecorator

PARAMETER = "namespace"


class _LanceDecoratedOperator(DecoratedOperator, PythonOperator):
    """Wraps the function; opens the namespace before and closes it after."""

    custom_operator_name = "@task.lance"
    template_fields: Sequence[str] = (*PythonOperator.template_fields, "lance_conn_id")

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        lance_conn_id: str = DEFAULT_CONNECTION,
        op_args: Sequence[Any] | None = None,
        op_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        signature = inspect.signature(python_callable)
        parameter = signature.parameters.get(PARAMETER)
        if parameter is None or parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise ValueError(
                f"@task.lance hands {python_callable.__name__} a connected namespace: give it a keyword-only parameter "
                f"`{PARAMETER}`, as in `def {python_callable.__name__}(..., *, {PARAMETER})`."
            )
        # Airflow binds the arguments while it parses the DAG, when there is no namespace yet.
        parameters = [
            each.replace(default=None) if each.name == PARAMETER else each for each in signature.parameters.values()
        ]
        python_callable.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        super().__init__(
            kwargs_to_upstream={"python_callable": python_callable, "op_args": op_args, "op_kwargs": op_kwargs},
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            **kwargs,
        )
        self.lance_conn_id = lance_conn_id

    def execute_callable(self) -> Any:
        """What the function returns, as XCom can read it back and without what no log may have."""
        return without_credentials(super().execute_callable())

    def execute(self, context: Context) -> Any:
        from airflow_provider_lance.hooks.lance import LanceNamespaceHook

        namespace = LanceNamespaceHook(self.lance_conn_id).get_conn()
        self.op_kwargs = {**self.op_kwargs, PARAMETER: namespace}
        try:
            return super().execute(context)
        finally:
            close = getattr(namespace, "close", None)
            if callable(close):
                close()


def lance_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Make a task of a function that works on a Lance namespace.

    >>> @task.lance(lance_conn_id="lance_default")
    ... def count(table: str, *, namespace) -> int:
    ...     return namespace.count_table_rows({"id": [table]})

    :param lance_conn_id: the connection; ``lance_default`` by default.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_LanceDecoratedOperator,
        **kwargs,
    )

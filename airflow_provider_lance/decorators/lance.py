"""``@task.lance``: makes a task of a Python function that gets a connected namespace."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AssetAlias, DecoratedOperator, task_decorator_factory
from airflow.providers.standard.operators.python import PythonOperator

from airflow_provider_lance.api.credentials import without_credentials
from airflow_provider_lance.configuration import DEFAULT_CONNECTION
from airflow_provider_lance.tasks.outlets import ChangedTables, asset_authority, publish_function_changes

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, TaskDecorator

PARAMETER = "namespace"


class _LanceDecoratedOperator(DecoratedOperator, PythonOperator):
    """Calls the function with a namespace that is connected before and closed after the call."""

    custom_operator_name = "@task.lance"
    template_fields: Sequence[str] = (*PythonOperator.template_fields, "lance_conn_id")

    def __init__(
        self,
        *,
        python_callable: Callable[..., object],
        lance_conn_id: str = DEFAULT_CONNECTION,
        op_args: Sequence[object] | None = None,
        op_kwargs: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> None:
        signature = inspect.signature(python_callable)
        parameter = signature.parameters.get(PARAMETER)
        if parameter is None or parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise ValueError(
                f"@task.lance hands {python_callable.__name__} a connected namespace: give it a keyword-only parameter "
                f"`{PARAMETER}`, as in `def {python_callable.__name__}(..., *, {PARAMETER})`."
            )
        # Airflow binds the arguments while it parses the DAG, when there is no namespace yet, so it gets a default.
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

    def execute_callable(self) -> object:
        """The function's result as plain data without credentials, because it becomes an XCom."""
        return without_credentials(super().execute_callable())

    def execute(self, context: Context) -> object:
        from airflow_provider_lance.hooks.lance import LanceNamespaceHook

        hook, asking = LanceNamespaceHook(self.lance_conn_id), LanceNamespaceHook(self.lance_conn_id)
        asking.reports_lineage = False
        has_alias = any(isinstance(outlet, AssetAlias) for outlet in self.outlets)
        changed = ChangedTables(asking, self.log, watch_opened=has_alias)
        namespace = hook.get_observed_conn(changed.note)
        self.op_kwargs = {**self.op_kwargs, PARAMETER: namespace}
        try:
            result = super().execute(context)
            publish_function_changes(self, context, asking, changed)
            return result
        finally:
            authority = asset_authority(hook, [*self.outlets, *self.inlets])
            for use in changed.lineage():
                hook.report_use(use, authority)
            asking.close()
            close = getattr(namespace, "close", None)
            if callable(close):
                close()


def lance_task(
    python_callable: Callable[..., object] | None = None,
    multiple_outputs: bool | None = None,
    *,
    lance_conn_id: str | None = None,
    **kwargs: Any,
) -> TaskDecorator:
    """Make a task of a function that works on a Lance namespace.

    The guide is ``docs/operators/task_lance.md``.

    >>> @task.lance(lance_conn_id="lance_default")
    ... def count(table: str, *, namespace) -> int:
    ...     return namespace.count_table_rows({"id": [table]})

    :param python_callable: The function. Its keyword-only parameter ``namespace`` gets the connected namespace.
    :param multiple_outputs: Whether a dict that the function returns becomes one XCom for each of its keys.
    :param lance_conn_id: The id of the namespace's connection. The default is ``lance_default``. (templated)
    :param kwargs: The other arguments of ``@task``.
    :return: The decorated function, which makes the task when it is called in a DAG.
    """
    if lance_conn_id is not None:  # otherwise the DAG's default_args apply
        kwargs["lance_conn_id"] = lance_conn_id
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_LanceDecoratedOperator,
        **kwargs,
    )

"""A view beside its declaration: how the two differ, and how a definition is replaced."""

from __future__ import annotations

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.job_states import IF_EXISTS
from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.declarations.namespace_state import Namespace, read_table, read_view
from airflow_provider_lance.declarations.table import LanceView
from airflow_provider_lance.definitions.differences import Difference, view_differences
from airflow_provider_lance.definitions.functions.table_function_spec import UdtfSpec
from airflow_provider_lance.definitions.sql.names import same_query
from airflow_provider_lance.definitions.view_definition import ViewDefinition

_CANNOT_REPLACE = "This server cannot change a view: allow_drop drops it and creates it again, without its rows."


def definition_differences(stored: ViewDefinition, view: LanceView, request: JsonObject) -> list[Difference]:
    """How a stored definition differs from the request of a declaration, without reading its SQL.

    A server that does not tell a view's query is believed to have the declared one.
    """
    same = not stored.query or same_query(stored.query, view.query)
    spec = request.get("udtf_spec")
    asked = ViewDefinition(
        kind=str(request.get("kind") or "query"),
        query=stored.query if same else view.query,
        dialect=stored.dialect,
        output_schema=request.get("output_schema"),
        udtf=None if spec is None else UdtfSpec.from_request(str(request["kind"]), spec),
        auto_refresh=view.auto_refresh,
        refresh_policy=view.refresh_policy,
    )
    return view_differences(stored, asked, asked)


def create_view(namespace: Namespace, view: LanceView, request: JsonObject) -> JsonObject:
    """Define a view without rows. An equal view that another task has created in the meantime is accepted."""
    return namespace.call("create_materialized_view", _fields(view, request, "skip"))


def replace_view(namespace: Namespace, view: LanceView, request: JsonObject, *, allow_drop: bool) -> JsonObject:
    """Give a view another definition, and check that the server did. Readers keep the rows until the next refresh."""
    try:
        answer = namespace.call("create_materialized_view", _fields(view, request, "replace"))
    except WireError as error:
        if error.code != ErrorCode.TABLE_ALREADY_EXISTS:
            raise
        if not allow_drop:
            error.advise(_CANNOT_REPLACE)
            raise
        return _drop_and_create(namespace, view, request)
    state = read_table(namespace, view.id)
    stored = None if state is None else read_view(namespace, state)
    if stored is None or not definition_differences(stored, view, request):
        return answer
    if allow_drop:
        return _drop_and_create(namespace, view, request)
    kept = f"The server accepted the request and kept the old definition of {view.name}. {_CANNOT_REPLACE}"
    raise WireError(kept, code=ErrorCode.UNSUPPORTED, operation="create_materialized_view")


def _drop_and_create(namespace: Namespace, view: LanceView, request: JsonObject) -> JsonObject:
    namespace.call("drop_materialized_view", {"id": list(view.id)})
    return create_view(namespace, view, request)


def _fields(view: LanceView, request: JsonObject, if_exists: str) -> JsonObject:
    return {"id": list(view.id), **request, "with_no_data": True, "context": {IF_EXISTS: if_exists}}

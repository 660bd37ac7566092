"""``LanceClient`` and ``AsyncLanceClient``: the wire with the spec's request and response models.

Every operation of the table is a method with the name that ``lance_namespace.LanceNamespace`` gives it. ``LanceClient``
is a ``LanceNamespace``, which pylance takes as its ``namespace_client``. ``AsyncLanceClient`` has the same methods to
await. Errors are the classes of ``lance_namespace.errors``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, overload

import httpx
import lance_namespace as spec
from lance_namespace.errors import InvalidInputError
from pydantic import BaseModel, ValidationError

from airflow_provider_lance.api import models
from airflow_provider_lance.api.arrow import read_arrow
from airflow_provider_lance.api.errors import WireError, junk_answer_error, lance_error
from airflow_provider_lance.api.http.protocol import Reply
from airflow_provider_lance.api.http.wire import AsyncWire, Wire
from airflow_provider_lance.api.models import model
from airflow_provider_lance.api.operations import OPERATIONS, Answer, Body, Operation
from airflow_provider_lance.api.plain_data import Fields, JsonObject

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_lance.api.arrow import ArrowData

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Taken = TypeVar("_Taken", contravariant=True)
_Given = TypeVar("_Given", covariant=True)


class Call(Protocol[_Taken, _Given]):
    """The method of an operation, which takes the spec's model or its fields as a dict. Some also take Arrow data."""

    def __call__(self, request: _Taken | Fields, request_data: ArrowData | None = None) -> _Given: ...


class OperationRunner(Protocol):
    """A namespace that runs the operations of the table."""

    def run(self, operation: Operation, request: object = None, request_data: ArrowData | None = None) -> object: ...


class Method(Generic[_Request, _Response]):
    """An operation of the table as a method, by the name of the attribute. It calls ``run`` of its object."""

    def __set_name__(self, owner: type, name: str) -> None:
        operation = self.operation = OPERATIONS[name]
        data = " with Arrow data" if operation.body is Body.ARROW else ""
        self.__doc__ = (
            f"{operation.summary}{data}: ``{operation.method} {operation.path}``.\n\n"
            f"Takes a ``{operation.request}`` or a dict, returns {operation.response or 'plain data'}."
        )

    @overload
    def __get__(self, namespace: AsyncLanceClient, owner: type) -> Call[_Request, Awaitable[_Response]]: ...
    @overload
    def __get__(self, namespace: OperationRunner, owner: type) -> Call[_Request, _Response]: ...
    @overload
    def __get__(self, namespace: None, owner: type) -> Method[_Request, _Response]: ...
    def __get__(self, namespace: OperationRunner | None, owner: type) -> object:
        return self if namespace is None else partial(namespace.run, self.operation)


# ``LanceNamespace`` has other models for these two, which are taken too.
_CreateEmptyTable = spec.CreateTableRequest | models.CreateEmptyTableRequest
_RefreshView = spec.RefreshMaterializedViewRequest | models.RefreshMaterializedViewRequest


class _Methods:
    """The operations with the types of their requests and responses."""

    create_namespace = Method[spec.CreateNamespaceRequest, spec.CreateNamespaceResponse]()
    list_namespaces = Method[spec.ListNamespacesRequest, spec.ListNamespacesResponse]()
    describe_namespace = Method[spec.DescribeNamespaceRequest, spec.DescribeNamespaceResponse]()
    drop_namespace = Method[spec.DropNamespaceRequest, spec.DropNamespaceResponse]()
    namespace_exists = Method[spec.NamespaceExistsRequest, spec.NamespaceExistsResponse]()
    list_tables = Method[spec.ListTablesRequest, spec.ListTablesResponse]()
    list_all_tables = Method[spec.ListTablesRequest, spec.ListTablesResponse]()
    register_table = Method[spec.RegisterTableRequest, spec.RegisterTableResponse]()
    describe_table = Method[spec.DescribeTableRequest, spec.DescribeTableResponse]()
    table_exists = Method[spec.TableExistsRequest, spec.TableExistsResponse]()
    drop_table = Method[spec.DropTableRequest, spec.DropTableResponse]()
    deregister_table = Method[spec.DeregisterTableRequest, spec.DeregisterTableResponse]()
    restore_table = Method[spec.RestoreTableRequest, spec.RestoreTableResponse]()
    rename_table = Method[spec.RenameTableRequest, spec.RenameTableResponse]()
    update_table_schema_metadata = Method[
        spec.UpdateTableSchemaMetadataRequest, spec.UpdateTableSchemaMetadataResponse
    ]()
    list_table_versions = Method[spec.ListTableVersionsRequest, spec.ListTableVersionsResponse]()
    create_table_version = Method[spec.CreateTableVersionRequest, spec.CreateTableVersionResponse]()
    describe_table_version = Method[spec.DescribeTableVersionRequest, spec.DescribeTableVersionResponse]()
    batch_delete_table_versions = Method[spec.BatchDeleteTableVersionsRequest, spec.BatchDeleteTableVersionsResponse]()
    batch_create_table_versions = Method[spec.BatchCreateTableVersionsRequest, spec.BatchCreateTableVersionsResponse]()
    batch_commit_tables = Method[spec.BatchCommitTablesRequest, spec.BatchCommitTablesResponse]()
    alter_table_alter_columns = Method[spec.AlterTableAlterColumnsRequest, spec.AlterTableAlterColumnsResponse]()
    update_field_metadata = Method[spec.UpdateFieldMetadataRequest, spec.UpdateFieldMetadataResponse]()
    alter_table_drop_columns = Method[spec.AlterTableDropColumnsRequest, spec.AlterTableDropColumnsResponse]()
    get_table_stats = Method[spec.GetTableStatsRequest, spec.GetTableStatsResponse]()
    insert_into_table = Method[spec.InsertIntoTableRequest, spec.InsertIntoTableResponse]()
    merge_insert_into_table = Method[spec.MergeInsertIntoTableRequest, spec.MergeInsertIntoTableResponse]()
    update_table = Method[spec.UpdateTableRequest, spec.UpdateTableResponse]()
    delete_from_table = Method[spec.DeleteFromTableRequest, models.DeleteFromTableResponse]()
    query_table = Method[spec.QueryTableRequest, spec.QueryTableResponse]()
    count_table_rows = Method[spec.CountTableRowsRequest, spec.CountTableRowsResponse]()
    create_table = Method[spec.CreateTableRequest, spec.CreateTableResponse]()
    explain_table_query_plan = Method[spec.ExplainTableQueryPlanRequest, str]()
    analyze_table_query_plan = Method[spec.AnalyzeTableQueryPlanRequest, str]()
    alter_table_add_columns = Method[spec.AlterTableAddColumnsRequest, spec.AlterTableAddColumnsResponse]()
    create_table_index = Method[spec.CreateTableIndexRequest, spec.CreateTableIndexResponse]()
    create_table_scalar_index = Method[spec.CreateTableIndexRequest, spec.CreateTableScalarIndexResponse]()
    list_table_indices = Method[spec.ListTableIndicesRequest, spec.ListTableIndicesResponse]()
    describe_table_index_stats = Method[spec.DescribeTableIndexStatsRequest, spec.DescribeTableIndexStatsResponse]()
    drop_table_index = Method[spec.DropTableIndexRequest, spec.DropTableIndexResponse]()
    prewarm_table_index = Method[models.PrewarmTableIndexRequest, models.PrewarmTableIndexResponse]()
    prewarm_table_data = Method[models.PrewarmTableDataRequest, models.PrewarmTableDataResponse]()
    list_table_tags = Method[spec.ListTableTagsRequest, spec.ListTableTagsResponse]()
    get_table_tag_version = Method[spec.GetTableTagVersionRequest, spec.GetTableTagVersionResponse]()
    create_table_tag = Method[spec.CreateTableTagRequest, spec.CreateTableTagResponse]()
    delete_table_tag = Method[spec.DeleteTableTagRequest, spec.DeleteTableTagResponse]()
    update_table_tag = Method[spec.UpdateTableTagRequest, spec.UpdateTableTagResponse]()
    declare_table = Method[spec.DeclareTableRequest, spec.DeclareTableResponse]()
    create_empty_table = Method[_CreateEmptyTable, models.CreateEmptyTableResponse]()
    list_table_branches = Method[spec.ListTableBranchesRequest, spec.ListTableBranchesResponse]()
    create_table_branch = Method[spec.CreateTableBranchRequest, spec.CreateTableBranchResponse]()
    delete_table_branch = Method[spec.DeleteTableBranchRequest, spec.DeleteTableBranchResponse]()
    describe_transaction = Method[spec.DescribeTransactionRequest, spec.DescribeTransactionResponse]()
    alter_transaction = Method[spec.AlterTransactionRequest, spec.AlterTransactionResponse]()
    alter_table_backfill_columns = Method[
        spec.AlterTableBackfillColumnsRequest, spec.AlterTableBackfillColumnsResponse
    ]()
    create_materialized_view = Method[spec.CreateMaterializedViewRequest, spec.CreateMaterializedViewResponse]()
    refresh_materialized_view = Method[_RefreshView, spec.RefreshMaterializedViewResponse]()
    write_table = Method[models.WriteTableRequest, models.WriteTableResponse]()
    describe_materialized_view = Method[
        models.DescribeMaterializedViewRequest, models.DescribeMaterializedViewResponse
    ]()
    drop_materialized_view = Method[models.DropMaterializedViewRequest, models.DropMaterializedViewResponse]()
    list_materialized_views = Method[models.ListMaterializedViewsRequest, models.ListMaterializedViewsResponse]()
    create_function = Method[models.CreateFunctionRequest, models.CreateFunctionResponse]()
    describe_function = Method[models.DescribeFunctionRequest, models.DescribeFunctionResponse]()
    drop_function = Method[models.DropFunctionRequest, models.DropFunctionResponse]()
    list_functions = Method[models.ListFunctionsRequest, models.ListFunctionsResponse]()
    create_secret = Method[models.CreateSecretRequest, models.CreateSecretResponse]()
    alter_secret = Method[models.AlterSecretRequest, models.AlterSecretResponse]()
    describe_secret = Method[models.DescribeSecretRequest, models.DescribeSecretResponse]()
    drop_secret = Method[models.DropSecretRequest, models.DropSecretResponse]()
    list_secrets = Method[models.ListSecretsRequest, models.ListSecretsResponse]()
    list_table_errors = Method[models.ListTableErrorsRequest, models.ListTableErrorsResponse]()
    list_jobs = Method[models.ListJobsRequest, models.ListJobsResponse]()
    describe_job = Method[models.DescribeJobRequest, models.DescribeJobResponse]()
    cancel_job = Method[models.CancelJobRequest, models.CancelJobResponse]()
    query_job_events = Method[models.QueryJobEventsRequest, "pa.Table"]()
    pause_job = Method[models.PauseJobRequest, models.PauseJobResponse]()
    resume_job = Method[models.ResumeJobRequest, models.ResumeJobResponse]()
    claim_job = Method[models.ClaimJobRequest, models.ClaimJobResponse]()
    report_job = Method[models.ReportJobRequest, models.ReportJobResponse]()


class LanceClient(_Methods, Wire, spec.LanceNamespace):
    """A Lance namespace over REST.

    >>> with LanceClient("http://localhost:2333") as client:
    ...     client.describe_table({"id": ["images"]}).version

    A request is the spec's model or a plain dict of its fields. Arrow data (``create_table``, ``insert_into_table``,
    ``merge_insert_into_table``) is a table, a reader, an iterator of batches or IPC bytes.
    """

    def namespace_id(self) -> str:
        database = f", database={self.settings.database!r}" if self.settings.database else ""
        return f"LanceClient({self.settings.base_url!r}{database})"

    def run(self, operation: Operation, request: object = None, request_data: ArrowData | None = None) -> object:
        """Run an operation of the table. Every operation is a method, which calls this."""
        fields = _fields(operation, request)
        try:
            reply = self.call(operation.name, fields, request_data)
        except WireError as error:
            failure = lance_error(error)
        else:
            return _response(operation, reply)
        raise failure  # outside of the except block, because a chained frame could show a secret

    def query_arrow(self, request: spec.QueryTableRequest | Fields) -> pa.Table:
        """``query_table`` with the answer decoded."""
        return read_arrow(_arrow_bytes(self.query_table(request)))

    def iterate(self, name: str, request: BaseModel | Fields | None = None) -> Iterator[Any]:
        """Every row of a listing (``"list_tables"``, ``"list_table_versions"``, ``"list_jobs"`` …), page by page."""
        try:
            yield from self.rows(name, _fields(OPERATIONS[name], request))
        except WireError as error:
            failure = lance_error(error)
        else:
            return
        raise failure


class AsyncLanceClient(_Methods, AsyncWire):
    """The same operations as coroutines, for one event loop."""

    async def run(self, operation: Operation, request: object = None, request_data: ArrowData | None = None) -> object:
        """Run an operation of the table. Every operation is a method, which calls this."""
        fields = _fields(operation, request)
        try:
            reply = await self.call(operation.name, fields, request_data)
        except WireError as error:
            failure = lance_error(error)
        else:
            return _response(operation, reply)
        raise failure

    async def query_arrow(self, request: spec.QueryTableRequest | Fields) -> pa.Table:
        """``query_table`` with the answer decoded."""
        return read_arrow(_arrow_bytes(await self.query_table(request)))

    async def iterate(self, name: str, request: BaseModel | Fields | None = None) -> AsyncIterator[Any]:
        """Every row of a listing, page by page."""
        try:
            async for row in self.rows(name, _fields(OPERATIONS[name], request)):
                yield row
        except WireError as error:
            failure = lance_error(error)
        else:
            return
        raise failure


def _arrow_bytes(response: spec.QueryTableResponse) -> bytes:
    # The generated model also allows the path of a file, which no server answers with.
    return cast("bytes", response.data or b"")


def plain_fields(operation: Operation, request: object) -> JsonObject:
    """The fields of a request that is a model, a dict or missing; ``InvalidInputError`` for anything else."""
    if request is None:
        return {}
    if isinstance(request, Mapping):  # pylance's Rust side hands over a dict subclass
        return dict(request)
    if isinstance(request, BaseModel):
        fields: JsonObject = request.to_dict() if hasattr(request, "to_dict") else request.model_dump(exclude_none=True)
        return fields
    raise InvalidInputError(f"{operation.name} takes a {operation.request} or a dict, not {type(request).__name__}.")


def _fields(operation: Operation, request: object) -> JsonObject:
    """The request's fields to send. A dict may have fields that the models lack, so it is checked but sent as it is."""
    fields = plain_fields(operation, request)
    if isinstance(request, Mapping):
        if isinstance(fields.get("on"), str):  # one merge key, as the spec had it before it took several
            fields["on"] = [fields["on"]]
        identifier = fields.get("id")
        read_request(operation, {**fields, "id": None} if isinstance(identifier, str) else fields)
    return fields


def read_request(operation: Operation, fields: JsonObject) -> BaseModel:
    """The request's fields, checked, as the model of the dialect they are in; ``InvalidInputError`` in one sentence."""
    dialect = operation.lancedb_request if operation.in_lancedb_dialect(fields) else None
    return read_model(operation, model(dialect or operation.request), fields)


def read_model(operation: Operation, kind: type[Any], fields: JsonObject) -> BaseModel:
    """The fields as a model; ``InvalidInputError`` in one sentence."""
    try:
        found: BaseModel = kind.from_dict(fields)
        return found
    except ValidationError as error:
        problem = validation_sentence(error)
    except (TypeError, ValueError, AttributeError) as error:  # the generated models raise these themselves
        problem = str(error)
    raise InvalidInputError(f"{operation.name}: {problem}")


def validation_sentence(error: ValidationError) -> str:
    """Pydantic's findings in one sentence: ``version must be greater than or equal to 0``."""
    found = [
        f"{'.'.join(str(step) for step in item['loc']) or 'the request'}: {item['msg'][:1].lower()}{item['msg'][1:]}"
        for item in error.errors(include_url=False, include_input=False)
    ]
    return "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")


def _response(operation: Operation, reply: Reply) -> object:
    if operation.answer is Answer.ARROW_STREAM:
        return read_arrow(reply.value)
    if operation.answer is Answer.TEXT or operation.response is None:
        return reply.value
    value = {"data": reply.value} if operation.answer is Answer.ARROW_FILE else reply.value or {}
    try:
        response = model(operation.response).from_dict(value)
    except ValidationError as error:
        problem = validation_sentence(error)
    except (TypeError, ValueError, AttributeError) as error:
        problem = str(error)
    else:
        # The spec and pylance's own client keep the headers of a response in its context, as ``header.<name>``.
        response.context = {f"header.{key}": text for key, text in reply.headers.items() if key != "set-cookie"}
        return response
    raise lance_error(junk_answer_error(operation, "", httpx.Response(reply.status, headers=reply.headers), problem))

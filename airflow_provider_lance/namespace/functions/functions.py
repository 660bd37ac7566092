"""Registered functions: create, describe, list and drop them. Each method is an operation of the wire.

A function is source text. It is checked here and never run: a column that is bound to it carries the source, and
Spark's workers run it.
"""

from __future__ import annotations

import datetime
import hashlib

from lance_namespace.errors import InvalidInputError, TransactionNotFoundError

from airflow_provider_lance.api import models
from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.definitions.errors import invalid
from airflow_provider_lance.definitions.functions.binding import location, source_function
from airflow_provider_lance.definitions.functions.envelope import SOURCE_BACKEND, UdfEnvelope, UdfPolicy
from airflow_provider_lance.definitions.functions.failure_policy import UdfError
from airflow_provider_lance.namespace.requests.values import cut_page, id_of
from airflow_provider_lance.namespace.submission import RegisteredFunction
from airflow_provider_lance.namespace.tables.job_requests import JobRequests

#: The type of the job that a client follows after it registered a function. The job is done when it is answered.
CREATE_FUNCTION = "create_function"


class Functions:
    """The functions of namespaces."""

    def __init__(self, jobs: JobRequests) -> None:
        self._jobs = jobs

    def create_function(self, request: models.CreateFunctionRequest) -> models.CreateFunctionResponse:
        function_id = id_of(request)
        definition: JsonObject = {
            "artifact": request.artifact,
            "signature": request.signature,
            "runtime": request.runtime,
            "secret_bindings": request.secret_bindings or [],
        }
        source = source_function(definition)
        try:
            UdfPolicy.from_environment().check(UdfEnvelope(SOURCE_BACKEND, call=source.call, source=source))
        except UdfError as error:
            raise invalid(str(error)) from error
        registered = self._jobs.service.functions.add(function_id, definition)
        spec = JobSpec(CREATE_FUNCTION, function_id, location(function_id), {"version": str(registered.version)})
        return models.CreateFunctionResponse(job_id=self._jobs.service.record(spec, _described(registered).to_dict()))

    def describe_function(self, request: models.DescribeFunctionRequest) -> models.DescribeFunctionResponse:
        version = None if request.version is None else _number(request.version)
        found = self._jobs.service.functions.find(id_of(request), version)
        if found is None:
            which = "" if request.version is None else f" of version {request.version}"
            raise TransactionNotFoundError(f"There is no function {join_id(id_of(request))}{which}.")
        return _described(found)

    def drop_function(self, request: models.DropFunctionRequest) -> models.DropFunctionResponse:
        """Drop a version. Columns that are bound to it carry its source, and are still filled."""
        dropped = self._jobs.service.functions.drop(id_of(request), _number(request.version))
        return models.DropFunctionResponse(dropped=dropped)

    def list_functions(self, request: models.ListFunctionsRequest) -> models.ListFunctionsResponse:
        found = {row.id[-1]: row for row in self._jobs.service.functions.listed(id_of(request))}
        page, token = cut_page(sorted(found), request.page_token, request.limit)
        entries = [{"name": name, "definition": _described(found[name]).to_dict()} for name in page]
        return models.ListFunctionsResponse(functions=entries, page_token=token)


def _described(function: RegisteredFunction) -> models.DescribeFunctionResponse:
    definition = function.definition
    created = datetime.datetime.fromtimestamp(function.created_ms / 1000, tz=datetime.UTC)
    return models.DescribeFunctionResponse(
        name=function.id[-1],
        namespace_path=list(function.id[:-1]),
        object_id=hashlib.sha256(join_id(function.id).encode()).hexdigest()[:32],
        location=location(function.id),
        version=str(function.version),
        # Functions run in the workers' own environment, so there is no image; clients compare the digest.
        image={"manifest_digest": definition["artifact"]["digest"], "descriptor": {}, "source": True},
        signature=definition["signature"],
        secret_bindings=definition["secret_bindings"],
        created_at=created.isoformat(),
    )


def _number(version: str) -> int:
    if not version.isdigit() or len(version) > 9:
        raise InvalidInputError(f"The version of a function is a number, not {version[:40]!r}.")
    return int(version)

"""Secrets of functions: create, alter, describe, list and drop them. Each method is an operation of the wire.

No operation answers a value. The jobs service gives values to the drivers that the server starts.
"""

from __future__ import annotations

from lance_namespace.errors import TransactionNotFoundError

from airflow_provider_lance.api import models
from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.namespace.requests.values import cut_page, id_of
from airflow_provider_lance.namespace.tables.job_requests import JobRequests


class Secrets:
    """The secrets of namespaces."""

    def __init__(self, jobs: JobRequests) -> None:
        self._jobs = jobs

    def create_secret(self, request: models.CreateSecretRequest) -> models.CreateSecretResponse:
        self._jobs.service.secrets.create(id_of(request), request.value)
        return models.CreateSecretResponse()

    def alter_secret(self, request: models.AlterSecretRequest) -> models.AlterSecretResponse:
        self._jobs.service.secrets.alter(id_of(request), request.value)
        return models.AlterSecretResponse()

    def describe_secret(self, request: models.DescribeSecretRequest) -> models.DescribeSecretResponse:
        found = self._jobs.service.secrets.find(id_of(request))
        if found is None:
            raise _missing(id_of(request))
        return models.DescribeSecretResponse(
            name=id_of(request)[-1], created_at_millis=found.created_ms, updated_at_millis=found.updated_ms
        )

    def drop_secret(self, request: models.DropSecretRequest) -> models.DropSecretResponse:
        if not self._jobs.service.secrets.drop(id_of(request)):
            raise _missing(id_of(request))
        return models.DropSecretResponse()

    def list_secrets(self, request: models.ListSecretsRequest) -> models.ListSecretsResponse:
        depth = len(id_of(request))
        names = ["$".join(row.name.split("$")[depth:]) for row in self._jobs.service.secrets.listed(id_of(request))]
        page, token = cut_page(names, request.page_token, request.limit)
        return models.ListSecretsResponse(secrets=[{"name": name} for name in page], page_token=token)


def _missing(secret_id: list[str]) -> TransactionNotFoundError:
    return TransactionNotFoundError(f"There is no secret {join_id(secret_id)}.")

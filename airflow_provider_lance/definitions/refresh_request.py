"""The refresh request of a materialized view: every field read, checked and given its type.

The server parses a request before a job exists, and the engine parses it again when the job runs. A field that cannot
be honoured is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_lance.definitions.errors import invalid
from airflow_provider_lance.definitions.functions.table_function_spec import check_manifest
from airflow_provider_lance.definitions.refresh_policy import AUTO, FULL, read_policy
from airflow_provider_lance.definitions.view_definition import ViewDefinition

_COUNTS = (
    "src_version",
    "max_rows_per_fragment",
    "concurrency",
    "intra_applier_concurrency",
    "source_task_size",
    "output_limit",
)
_FIELDS = frozenset([*_COUNTS, "cluster", "manifest", "full", "refresh_policy"])
_ENVELOPE = ("id", "identity", "context")  # the request carries these for the server, not for the job


@dataclass(frozen=True)
class RefreshRequest:
    """RefreshMaterializedView as the engine sees it. ``policy`` is the request's, or else the view's."""

    src_version: int | None = None
    max_rows_per_fragment: int | None = None
    concurrency: int | None = None
    intra_applier_concurrency: int | None = None
    source_task_size: int | None = None
    output_limit: int | None = None
    policy: str = AUTO
    manifest: str | None = None
    cluster: str | None = None

    @property
    def full(self) -> bool:
        """Whether all rows are computed again."""
        return self.policy == FULL

    @classmethod
    def parse(cls, definition: ViewDefinition, request: Mapping[str, object]) -> RefreshRequest:
        """Read a request body; InvalidInputError (code 13) says what a refresh of this view cannot honour."""
        given = {key: value for key, value in request.items() if value is not None and key not in _ENVELOPE}
        unknown = sorted(set(given) - _FIELDS)
        if unknown:
            raise invalid(f"unknown fields in the refresh request: {', '.join(unknown)}.")
        counts = {key: _count(key, given[key]) for key in _COUNTS if key in given}
        full, manifest = given.get("full", False), given.get("manifest")
        if not isinstance(full, bool):
            raise invalid("full must be true or false.")
        policy = read_policy(given.get("refresh_policy"))
        if full and policy not in (None, FULL):
            raise invalid(f"full computes all rows again, and refresh_policy says {policy}: send one of the two.")
        if policy is None:
            policy = FULL if full else definition.refresh_policy or AUTO
        cluster = given.get("cluster")
        if cluster is not None and not isinstance(cluster, str):
            raise invalid("cluster must be a name.")
        if "output_limit" in given and definition.kind != "chunker":
            raise invalid(f"output_limit is for chunker views; this view's kind is {definition.kind}.")
        if manifest is not None:
            if definition.udtf is None:
                raise invalid("manifest describes a function's environment; this view has no function.")
            check_manifest(manifest, "manifest")
        if definition.dialect == "opaque":
            raise invalid(
                "this server stored the view's source query without understanding it and cannot refresh it. It runs "
                'SQL (SELECT …) or JSON {"query": "SELECT …"}.'
            )
        if not definition.incremental:
            for key in ("source_task_size", "intra_applier_concurrency"):
                if key in given:
                    raise invalid(
                        f"{key} applies to views that follow their source's rows; this one is always computed whole."
                    )
        if "src_version" in given and len(definition.sources) > 1:
            raise invalid(f"src_version is ambiguous: the view reads {', '.join(definition.sources)}.")
        return cls(policy=policy, manifest=None if manifest is None else str(manifest), cluster=cluster, **counts)


def _count(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(f"{key} must be a whole number.")
    least = 0 if key == "output_limit" else 1
    if value < least:
        raise invalid(f"{key} must be at least {least}, not {value}.")
    return value

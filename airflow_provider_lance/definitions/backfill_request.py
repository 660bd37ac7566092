"""The backfill request: every field read, checked and given its meaning.

The server reads and checks a request before a job exists, so nothing here may import Spark; the engine reads the same
values. A field that cannot be honoured is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.definitions.column_rules import ColumnRule, column_rule
from airflow_provider_lance.definitions.errors import invalid
from airflow_provider_lance.definitions.expressions import check_filter, one_expression
from airflow_provider_lance.definitions.functions.envelope import UdfPolicy
from airflow_provider_lance.definitions.functions.failure_policy import ErrorPolicy, UdfError

if TYPE_CHECKING:
    import pyarrow as pa

_COUNTS = (
    "concurrency",
    "intra_applier_concurrency",
    "min_checkpoint_size",
    "max_checkpoint_size",
    "checkpoint_size",
    "read_version",
    "task_size",
    "num_frags",
    "commit_granularity",
)
_TEXTS = ("column", "where", "branch", "cluster", "manifest")
_SECONDS = "batch_checkpoint_flush_interval_seconds"
_ENVELOPE = ("id", "identity", "context")  # what the request carries for the server, not for the job

DEFAULT_FLUSH_SECONDS = 30.0
MAX_SAMPLE = 1000  # the rows are part of the job's result


@dataclass(frozen=True)
class BackfillRequest:
    """AlterTableBackfillColumns as the engine sees it, with the context entries that steer execution."""

    column: str
    where: str | None = None
    concurrency: int | None = None
    intra_applier_concurrency: int | None = None
    min_checkpoint_size: int | None = None
    max_checkpoint_size: int | None = None
    checkpoint_size: int | None = None
    batch_checkpoint_flush_interval_seconds: float | None = None
    read_version: int | None = None
    task_size: int | None = None
    num_frags: int | None = None
    commit_granularity: int | None = None
    branch: str | None = None
    cluster: str | None = None
    manifest: str | None = None
    plan: bool = False
    max_failed_rows: int | None = None
    max_failed_fraction: float | None = None
    on_error: str | None = None
    retries: int | None = None
    only: str | None = None
    sample: int | None = None

    @classmethod
    def parse(cls, request: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> BackfillRequest:
        """Read a request body and its context; ``InvalidInputError`` names the field that is wrong."""
        values: dict[str, Any] = {}
        for name, value in request.items():
            if name in _ENVELOPE or value is None:
                continue
            if name in _COUNTS:
                values[name] = _count(name, value)
            elif name == _SECONDS:
                values[name] = _seconds(name, value)
            elif name in _TEXTS:
                values[name] = _text(name, value)
            else:
                raise invalid(f"A backfill has no field {name!r}")
        if "where" in values:  # the engine puts it into larger conditions
            values["where"] = one_expression(values["where"], "where clause").text
        if "column" not in values:
            raise invalid("A backfill needs a column")
        parsed = cls(**values, **_options(options or {}))
        low, high = parsed.min_checkpoint_size, parsed.max_checkpoint_size
        if low is not None and high is not None and low > high:
            raise invalid(f"min_checkpoint_size is {low}, above max_checkpoint_size {high}")
        size = parsed.checkpoint_size
        if size is not None and ((low is not None and size < low) or (high is not None and size > high)):
            raise invalid(f"checkpoint_size is {size}, outside its bounds {low or 1} to {high or 'any'}")
        return parsed

    @property
    def flush_seconds(self) -> float:
        chosen = self.batch_checkpoint_flush_interval_seconds
        return DEFAULT_FLUSH_SECONDS if chosen is None else chosen

    def error_policy(self, rule: ColumnRule) -> ErrorPolicy:
        """The request's word on failing rows, else the column's."""
        inherited = rule.policy
        if self.on_error is None:
            return inherited if self.retries is None else inherited.with_retries(self.retries)
        return ErrorPolicy.of(self.on_error, inherited.retries or None if self.retries is None else self.retries)

    def check(
        self, schema: pa.Schema, *, policy: UdfPolicy | None = None, storage_version: str | None = None
    ) -> ColumnRule:
        """The rule of the request's column; code 13 or 12 refuses a request that the engine could not honour whole.

        ``schema`` is the table's (of the request's branch and ``read_version``), field metadata included. The server
        checks the names of clusters, manifests and branches.
        """
        rule = column_rule(schema, self.column)
        if self.where is not None:
            check_filter(schema, self.where)
        if rule.envelope is not None:
            try:
                (policy or UdfPolicy.from_environment()).check(rule.envelope)
            except UdfError as error:
                raise invalid(str(error)) from error
        for target in rule.targets:
            check_storable(schema.field(target), storage_version)
        return rule


def check_storable(field: pa.Field[pa.DataType], storage_version: str | None) -> None:
    """Refuse the types whose column file Lance writes and then cannot read back."""
    import pyarrow as pa

    if (field.metadata or {}).get(b"lance-encoding:blob") == b"true":
        raise invalid(f"Column {field.name!r} is blob-encoded; Lance cannot replace such a column's file")
    if storage_version is None:
        return
    parts = tuple(int(part) for part in storage_version.split(".")[:2]) if storage_version[:1].isdigit() else (2, 1)
    if parts < (2, 2) and _contains(field.type, pa.types.is_map):
        raise invalid(f"Column {field.name!r} is a map: filling it needs storage version 2.2, not {parts}")
    if parts < (2, 1) and _contains(field.type, pa.types.is_struct):
        raise invalid(f"Column {field.name!r} is a struct: filling it needs storage version 2.1, not {parts}")


def _contains(kind: pa.DataType, test: Any) -> bool:
    return bool(test(kind)) or any(_contains(kind.field(i).type, test) for i in range(kind.num_fields))


def writes_nothing(options: Mapping[str, Any]) -> bool:
    """Whether a job, a backfill or a refresh, only plans or only tries a rule. It needs no lock."""
    return options.get("sample") is not None or only_plans(options)


def only_plans(options: Mapping[str, Any]) -> bool:
    """Whether a job, a backfill or a refresh, only tells what it would do."""
    word = str(options.get("plan") or "false").strip().lower()
    if word not in ("true", "false", "1", "0"):
        raise invalid(f"plan is {options['plan']!r}; it must be true or false")
    return word in ("true", "1")


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The context travels as headers, so its values may be text."""
    found: dict[str, Any] = {}
    if options.get("plan") is not None:
        found["plan"] = only_plans(options)
    for name in ("max_failed_rows", "retries"):
        if options.get(name) is not None:
            try:
                found[name] = int(str(options[name]))
            except ValueError:
                raise invalid(f"{name} is {options[name]!r}; it must be a whole number") from None
            if found[name] < 0:
                raise invalid(f"{name} is {found[name]}; it must be 0 or more")
    if options.get("max_failed_fraction") is not None:
        found["max_failed_fraction"] = _fraction("max_failed_fraction", options["max_failed_fraction"])
    if options.get("on_error") is not None:
        try:
            ErrorPolicy.of(str(options["on_error"]))
        except UdfError as error:
            raise invalid(str(error)) from None
        found["on_error"] = str(options["on_error"])
    if options.get("only") is not None:
        if options["only"] != "failed":
            raise invalid(f"only is {options['only']!r}; it must be failed")
        found["only"] = "failed"
    if options.get("sample") is not None:
        text = str(options["sample"])
        if not (text.isascii() and text.isdecimal() and 0 < int(text) <= MAX_SAMPLE):
            raise invalid(f"sample is {text!r}; it must be a number of rows from 1 to {MAX_SAMPLE}")
        found["sample"] = int(text)
    return found


def _fraction(name: str, value: Any) -> float:
    try:
        fraction = float(str(value))
    except ValueError:
        raise invalid(f"{name} is {value!r}; it must be a number between 0 and 1") from None
    if not 0 <= fraction <= 1:
        raise invalid(f"{name} is {value}; it must be between 0 and 1")
    return fraction


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(f"{name} is {value!r}; it must be a whole number")
    if value < 1:
        raise invalid(f"{name} is {value}; it must be 1 or more")
    return value


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise invalid(f"{name} is {value!r}; it must be a number of seconds above 0")
    return float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise invalid(f"{name} is {value!r}; it must be text that is not empty")
    return value

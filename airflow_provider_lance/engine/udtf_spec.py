"""The ``udtf_spec`` of a view: which table function, over which columns, with which resources. Validated, never run.

The server checks one of these when a view is created; the engine reads it back when the view is refreshed. The
envelope inside stays sealed here: only the engine opens it (see ``udf.py``), inside a Spark job.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

TABLE_FUNCTION_KINDS = ("udtf", "chunker")
_TEXTS = ("kind", "udtf", "udtf_sha", "udtf_name", "udtf_version")
_UDTF_ONLY = ("partition_by", "partition_by_indexed_column", "error_handling")
ERROR_MODES = ("fail", "retry", "skip")
BACKOFFS = ("exponential", "fixed", "linear")


def refuse(message: str) -> NoReturn:
    """Raise the namespace's InvalidInputError (code 13), imported here because its package takes a second to load."""
    from lance_namespace.errors import InvalidInputError

    raise InvalidInputError(message)


@dataclass(frozen=True)
class ErrorHandling:
    """What to do with a partition whose function raises. ``max_attempts`` counts the first try too."""

    mode: str = "fail"
    max_attempts: int = 3
    backoff: str = "exponential"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> ErrorHandling:
        if not data:
            return cls()
        unknown = sorted(set(data) - {"mode", "max_attempts", "backoff"})
        if unknown:
            refuse(
                f"error_handling has unknown keys {', '.join(unknown)}; this server reads mode "
                "(fail, retry, skip), max_attempts and backoff (exponential, fixed, linear)."
            )
        mode, backoff = data.get("mode", "fail"), data.get("backoff", "exponential")
        attempts = data.get("max_attempts", 3)
        if mode not in ERROR_MODES:
            refuse(f"error_handling.mode {mode!r} is none of {', '.join(ERROR_MODES)}.")
        if backoff not in BACKOFFS:
            refuse(f"error_handling.backoff {backoff!r} is none of {', '.join(BACKOFFS)}.")
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
            refuse("error_handling.max_attempts must be a whole number from 1.")
        return cls(mode, attempts, backoff)

    def delay(self, attempt: int) -> float:
        """Seconds to wait after the failed ``attempt`` (1, 2, …), never more than a minute."""
        seconds = {"fixed": 1.0, "linear": float(attempt), "exponential": 2.0 ** (attempt - 1)}[self.backoff]
        return min(60.0, seconds)


@dataclass(frozen=True)
class UdtfSpec:
    """MaterializedViewUdtfEntry, checked. ``None`` means the client did not say."""

    kind: str
    udtf: str
    udtf_sha: str
    udtf_name: str
    udtf_version: str
    input_columns: tuple[str, ...] | None = None
    partition_by: str | None = None
    partition_by_indexed_column: str | None = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    error_handling: Mapping[str, Any] | None = None
    batch: bool | None = None
    manifest: str | None = None
    manifest_checksum: str | None = None

    @property
    def errors(self) -> ErrorHandling:
        return ErrorHandling.from_dict(self.error_handling)

    def to_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> UdtfSpec:
        """Read a stored spec back; it was validated when it was stored."""
        known = {key: data[key] for key in cls.__dataclass_fields__ if data.get(key) is not None}
        if "input_columns" in known:
            known["input_columns"] = tuple(known["input_columns"])
        return cls(**known)

    @classmethod
    def from_request(cls, kind: str, data: Mapping[str, Any]) -> UdtfSpec:
        """Check a client's ``udtf_spec`` for a view of ``kind``; raises InvalidInputError, changes nothing."""
        data = {key: value for key, value in data.items() if value is not None}
        unknown = sorted(set(data) - set(cls.__dataclass_fields__))
        if unknown:
            refuse(f"udtf_spec has unknown fields: {', '.join(unknown)}.")
        for key in _TEXTS:
            if not isinstance(data.get(key), str) or not data[key]:
                refuse(f"udtf_spec.{key} is required and must be a non-empty string.")
        spec_kind = "chunker" if data["kind"] == "scalar_udtf" else data["kind"]
        if spec_kind != kind:
            refuse(f"udtf_spec.kind is {data['kind']!r}, but the view's kind is {kind!r}: they must match.")
        _check_fields(kind, data)
        _check_sums(data)
        ErrorHandling.from_dict(data.get("error_handling"))
        return cls.from_dict({**data, "kind": kind})


def _check_fields(kind: str, data: Mapping[str, Any]) -> None:
    for key in _UDTF_ONLY:
        if kind != "udtf" and key in data:
            refuse(f"udtf_spec.{key} belongs to batch functions (kind udtf), not to a {kind}.")
    if kind == "udtf" and "batch" in data:
        refuse("udtf_spec.batch belongs to chunkers, not to kind udtf.")
    if "partition_by" in data and "partition_by_indexed_column" in data:
        refuse("udtf_spec.partition_by and partition_by_indexed_column exclude each other.")
    columns = data.get("input_columns")
    if columns is None and kind == "chunker":
        refuse("udtf_spec.input_columns is required for a chunker: name the columns it reads.")
    if columns is not None and (
        not isinstance(columns, list | tuple) or not columns or not all(isinstance(c, str) and c for c in columns)
    ):
        refuse("udtf_spec.input_columns must be a list of non-empty column names.")
    for key in ("partition_by", "partition_by_indexed_column"):
        if key in data and (not isinstance(data[key], str) or not data[key]):
            refuse(f"udtf_spec.{key} must be a non-empty column name.")
    for key in ("num_cpus", "num_gpus", "memory"):
        value = data.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
            refuse(f"udtf_spec.{key} must be a number that is not negative.")
    if data.get("num_cpus") == 0:
        refuse("udtf_spec.num_cpus must be more than 0.")
    if "batch" in data and not isinstance(data["batch"], bool):
        refuse("udtf_spec.batch must be true or false.")
    if "error_handling" in data and not isinstance(data["error_handling"], Mapping):
        refuse("udtf_spec.error_handling must be an object.")


def _check_sums(data: Mapping[str, Any]) -> None:
    # Clients hash the base64 text they send, not the bytes inside it.
    if hashlib.sha256(data["udtf"].encode()).hexdigest() != data["udtf_sha"].lower():
        refuse("udtf_sha is not the SHA-256 of the udtf string that was sent: the envelope was damaged on its way.")
    try:
        base64.b64decode(data["udtf"], validate=True)
    except (binascii.Error, ValueError):
        refuse("udtf_spec.udtf is not base64.")
    manifest = data.get("manifest")
    if manifest is not None:
        check_manifest(manifest, "udtf_spec.manifest")
    if "manifest_checksum" in data:
        if manifest is None:
            refuse("udtf_spec.manifest_checksum is given without a manifest.")
        if hashlib.sha256(manifest.encode()).hexdigest() != str(data["manifest_checksum"]).lower():
            refuse("manifest_checksum is not the SHA-256 of the manifest string that was sent.")


def check_manifest(manifest: Any, where: str) -> dict[str, Any]:
    """A manifest is inline JSON here; returns its object."""
    try:
        parsed = json.loads(manifest) if isinstance(manifest, str) else None
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        refuse(f"{where} must be the manifest itself as a JSON object in a string.")
    return parsed

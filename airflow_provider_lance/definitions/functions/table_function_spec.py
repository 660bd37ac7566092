"""The ``udtf_spec`` of a view: which table function, over which columns, with which resources.

The server checks a spec when a view is created, and the engine reads it back when the view is refreshed. The function's
envelope is not opened here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from airflow_provider_lance.definitions.errors import invalid
from airflow_provider_lance.definitions.json_types import JsonObject

ERROR_MODES = ("fail", "retry", "skip")
BACKOFFS = ("exponential", "fixed", "linear")
_REQUIRED_TEXTS = ("kind", "udtf", "udtf_sha", "udtf_name", "udtf_version")
_UDTF_ONLY = ("partition_by", "partition_by_indexed_column", "error_handling")


@dataclass(frozen=True)
class ErrorHandling:
    """What to do with a partition whose function raises. ``max_attempts`` counts the first attempt as well."""

    mode: str = "fail"
    max_attempts: int = 3
    backoff: str = "exponential"

    @classmethod
    def from_dict(cls, data: Mapping[str, object] | None) -> ErrorHandling:
        """Read and check ``udtf_spec.error_handling``."""
        if not data:
            return cls()
        unknown = sorted(set(data) - {"mode", "max_attempts", "backoff"})
        if unknown:
            raise invalid(
                f"error_handling has unknown keys {', '.join(unknown)}; this server reads mode "
                "(fail, retry, skip), max_attempts and backoff (exponential, fixed, linear)."
            )
        mode, backoff = data.get("mode", "fail"), data.get("backoff", "exponential")
        attempts = data.get("max_attempts", 3)
        if mode not in ERROR_MODES:
            raise invalid(f"error_handling.mode {mode!r} is none of {', '.join(ERROR_MODES)}.")
        if backoff not in BACKOFFS:
            raise invalid(f"error_handling.backoff {backoff!r} is none of {', '.join(BACKOFFS)}.")
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
            raise invalid("error_handling.max_attempts must be a whole number from 1.")
        return cls(str(mode), attempts, str(backoff))

    def delay(self, attempt: int) -> float:
        """The seconds to wait after the failed ``attempt`` (1, 2, …): never more than a minute."""
        seconds = {"fixed": 1.0, "linear": float(attempt), "exponential": 2.0 ** (attempt - 1)}[self.backoff]
        return min(60.0, seconds)


@dataclass(frozen=True)
class UdtfSpec:
    """A checked ``MaterializedViewUdtfEntry``. A field is None where the client did not send it."""

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
    error_handling: Mapping[str, object] | None = None
    batch: bool | None = None
    manifest: str | None = None
    manifest_checksum: str | None = None

    @property
    def errors(self) -> ErrorHandling:
        return ErrorHandling.from_dict(self.error_handling)

    def to_dict(self) -> dict[str, object]:
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, data: JsonObject) -> UdtfSpec:
        """Read a stored spec back; it was validated when it was stored."""
        known = {key: data[key] for key in cls.__dataclass_fields__ if data.get(key) is not None}
        if "input_columns" in known:
            known["input_columns"] = tuple(known["input_columns"])
        return cls(**known)

    @classmethod
    def from_request(cls, kind: str, data: Mapping[str, object]) -> UdtfSpec:
        """Check a client's ``udtf_spec`` for a view of ``kind``; InvalidInputError says what is wrong."""
        given = {key: value for key, value in data.items() if value is not None}
        unknown = sorted(set(given) - set(cls.__dataclass_fields__))
        if unknown:
            raise invalid(f"udtf_spec has unknown fields: {', '.join(unknown)}.")
        for key in _REQUIRED_TEXTS:
            if not _is_text(given.get(key)):
                raise invalid(f"udtf_spec.{key} is required and must be a non-empty string.")
        spec_kind = "chunker" if given["kind"] == "scalar_udtf" else given["kind"]
        if spec_kind != kind:
            raise invalid(f"udtf_spec.kind is {given['kind']!r}, but the view's kind is {kind!r}: they must match.")
        _check_kind(kind, given)
        for key, is_right, demand in _FIELD_CHECKS:
            if key in given and not is_right(given[key]):
                raise invalid(f"udtf_spec.{key} {demand}.")
        spec = cls.from_dict({**given, "kind": kind})
        _check_sums(spec)
        ErrorHandling.from_dict(spec.error_handling)
        return spec


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_is_text, value))


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


#: A field of the spec, the test that its value has to pass, and the demand that the refusal states.
_FIELD_CHECKS: tuple[tuple[str, Callable[[object], bool], str], ...] = (
    ("input_columns", _is_texts, "must be a list of non-empty column names"),
    ("partition_by", _is_text, "must be a non-empty column name"),
    ("partition_by_indexed_column", _is_text, "must be a non-empty column name"),
    ("num_cpus", _is_amount, "must be a number that is not negative"),
    ("num_gpus", _is_amount, "must be a number that is not negative"),
    ("memory", _is_amount, "must be a number that is not negative"),
    ("num_cpus", bool, "must be more than 0"),
    ("batch", _is_flag, "must be true or false"),
    ("error_handling", _is_object, "must be an object"),
    ("manifest_checksum", _is_text, "must be a non-empty string"),
)


def _check_kind(kind: str, given: Mapping[str, object]) -> None:
    """Refuse fields that belong to the other kind of function, and a chunker without its columns."""
    for key in _UDTF_ONLY:
        if kind != "udtf" and key in given:
            raise invalid(f"udtf_spec.{key} belongs to batch functions (kind udtf), not to a {kind}.")
    if kind == "udtf" and "batch" in given:
        raise invalid("udtf_spec.batch belongs to chunkers, not to kind udtf.")
    if "partition_by" in given and "partition_by_indexed_column" in given:
        raise invalid("udtf_spec.partition_by and partition_by_indexed_column exclude each other.")
    if kind == "chunker" and "input_columns" not in given:
        raise invalid("udtf_spec.input_columns is required for a chunker: name the columns it reads.")


def _check_sums(spec: UdtfSpec) -> None:
    if text_sha(spec.udtf) != spec.udtf_sha.lower():
        raise invalid(
            "udtf_sha is not the SHA-256 of the udtf string that was sent: the envelope was damaged on its way."
        )
    try:
        base64.b64decode(spec.udtf, validate=True)
    except (binascii.Error, ValueError):
        raise invalid("udtf_spec.udtf is not base64.") from None
    if spec.manifest is not None:
        check_manifest(spec.manifest, "udtf_spec.manifest")
    if spec.manifest_checksum is not None:
        if spec.manifest is None:
            raise invalid("udtf_spec.manifest_checksum is given without a manifest.")
        if text_sha(spec.manifest) != spec.manifest_checksum.lower():
            raise invalid("manifest_checksum is not the SHA-256 of the manifest string that was sent.")


def text_sha(text: str) -> str:
    """The SHA-256 of a text. Clients hash the base64 text that they send, not the bytes inside it."""
    return hashlib.sha256(text.encode()).hexdigest()


def check_manifest(manifest: object, where: str) -> JsonObject:
    """The object of a manifest, which is inline JSON in a string."""
    try:
        parsed = json.loads(manifest) if isinstance(manifest, str) else None
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise invalid(f"{where} must be the manifest itself as a JSON object in a string.")
    return parsed

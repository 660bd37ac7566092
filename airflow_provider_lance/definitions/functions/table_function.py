"""The Python function of a view in its envelope, with the schema of the rows that it yields.

The envelope is base64 text of a JSON document around the envelope that columns use (``envelope.py``);
``docs/views.md`` describes it. Nothing here runs the function.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from airflow_provider_lance.definitions.arrow_types import encode_schema
from airflow_provider_lance.definitions.functions.envelope import (
    OPTIONS_ATTRIBUTE,
    UdfEnvelope,
    UdfOptions,
    wrap,
)
from airflow_provider_lance.definitions.functions.failure_policy import UdfError
from airflow_provider_lance.definitions.view_definition import read_output_schema

if TYPE_CHECKING:
    import pyarrow as pa

_FORMAT = 1


@dataclass(frozen=True)
class TableFunction:
    """A wrapped function and the rows it yields."""

    envelope: UdfEnvelope
    output: pa.Schema

    def encode(self) -> str:
        """The text of ``udtf_spec.udtf``; ``udtf_sha`` is the SHA-256 of this text."""
        document = {
            "format": _FORMAT,
            "udf_backend": self.envelope.backend,
            "udf": self.envelope.encode(),
            "output_schema": encode_schema(self.output),
        }
        return base64.b64encode(json.dumps(document, sort_keys=True).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> TableFunction:
        """Read an envelope without running any of it; UdfError when it is not ours."""
        try:
            document = json.loads(base64.b64decode(text, validate=True))
        except (ValueError, binascii.Error):
            document = None
        if not isinstance(document, dict) or document.get("format") != _FORMAT or "udf" not in document:
            raise UdfError(
                "the view's function is in an envelope of another system; this engine runs its own, base64 of JSON "
                '{"format": 1, "udf_backend": …, "udf": …, "output_schema": …}'
            )
        envelope = UdfEnvelope.decode(document.get("udf_backend"), document["udf"])
        return cls(envelope, read_output_schema(document["output_schema"]))


def wrap_table_function(
    function: Callable[..., object] | str,
    output: pa.Schema,
    *,
    arguments: Mapping[str, object] | None = None,
    **options: Unpack[UdfOptions],
) -> TableFunction:
    """Put the function of a chunker or table function view into the envelope in which the view stores it.

    ``table_function_spec`` does this and builds the whole ``udtf_spec`` of the view.

    :param function: An import path ``"package.module:function"``, or a function or class, which is pickled.
    :param output: The schema of the rows that the function yields.
    :param arguments: The arguments of the ``__init__`` of the function's class, by name.
    :param options: The options of :func:`udf`. They take precedence over those of the function's own decorator.
    """
    if "call" not in getattr(function, OPTIONS_ATTRIBUTE, {}):
        options.setdefault("call", "scalar")  # the spec of the view says how its function is called
    return TableFunction(wrap(function, arguments=arguments, **options), output)

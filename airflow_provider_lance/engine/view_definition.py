"""What a materialized view is: its kind, its query, its table function, and how that is written into the table.

Both dialects of CreateMaterializedView end in one :class:`ViewDefinition`; ``mv.definition`` in the view's schema
metadata is the same thing on disk, as LanceDB writes it. The namespace server imports this module: it starts no
Spark, opens no table, and imports pyarrow and lance_namespace only where they are used.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.definitions.sql_text import SelectItem, SimpleSelect, SqlError, quote, repeated_names
from airflow_provider_lance.engine.expressions import format_path, parse_path
from airflow_provider_lance.engine.udtf_spec import UdtfSpec, check_manifest, refuse

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_lance.definitions.spark_sql import SparkQuery

SOURCE_ROW_ID = "__source_row_id"
DEFINITION_KEY = "mv.definition"
AUTO_REFRESH_KEY = "mv.auto_refresh"

# LanceDB reads formats 1 and 2 and reports any other number without touching the view (seen with 0.40).
LANCEDB_FORMAT = 1
OWN_FORMAT = 1000

KINDS = ("query", "udtf", "chunker")
_SPEC_FIELDS = ("kind", "source_query", "output_schema", "udtf_spec", "with_no_data", "auto_refresh")
_REQUEST_FIELDS = frozenset(["id", "identity", "context", "query", *_SPEC_FIELDS])
_REFRESH_NUMBERS = (
    "src_version",
    "max_rows_per_fragment",
    "concurrency",
    "intra_applier_concurrency",
    "source_task_size",
    "output_limit",
)
_REFRESH_FIELDS = frozenset([*_REFRESH_NUMBERS, "id", "identity", "context", "cluster", "manifest", "full"])


@dataclass(frozen=True)
class ViewDefinition:
    """A view's definition, independent of where its tables lie.

    ``dialect`` says who evaluates ``query``: ``lance`` (one table, columns, WHERE, LIMIT; refreshes incrementally),
    ``spark`` (anything else that is SQL; rebuilds) or ``opaque`` (stored as given, refused at refresh).
    ``select`` is the query taken apart, for the ``lance`` dialect only.
    """

    kind: str
    query: str
    dialect: str
    select: SimpleSelect | None = None
    output_schema: str | None = None
    udtf: UdtfSpec | None = None
    with_no_data: bool = True
    auto_refresh: bool = False

    @property
    def format(self) -> int:
        """The number in ``mv.definition``: 1 for what LanceDB can refresh itself, 1000 for what only we can."""
        return LANCEDB_FORMAT if self.kind == "query" and self.dialect == "lance" else OWN_FORMAT

    @property
    def incremental(self) -> bool:
        """Whether a refresh may follow the changes of the one source instead of computing everything."""
        return self.dialect == "lance" and self.kind in ("query", "chunker")

    @property
    def source_ids(self) -> dict[str, list[str]]:
        """The tables the query reads: the name as written (parts joined by dots) → the id's parts.

        A quoted part is taken as it is, so ``FROM `team$people``` is the one-part name ``team$people``, which the
        namespace splits on its delimiter like any other string id.
        """
        if self.dialect == "opaque":
            return {}
        paths = [self.select.table] if self.select is not None else spark_query(self.query).tables
        return {".".join(parts): list(parts) for parts in paths}

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of :attr:`source_ids`; a job's ``spec.tables`` has a location for each."""
        return tuple(self.source_ids)

    @property
    def partition_key(self) -> str | None:
        """The expression over the source by whose value a table function's rows are partitioned, if any."""
        if self.udtf is None or self.udtf.partition_by is None or self.select is None:
            return None
        first, *rest = parse_path(self.udtf.partition_by)
        item = next(item for item in self.select.items if item.name == first)
        return f"({item.expression}).{format_path(rest)}" if rest else item.expression

    def output(self) -> pa.Schema | None:
        """The schema the client asked for, without the row id column; ``None`` when it did not say."""
        return None if self.output_schema is None else decode_schema(self.output_schema)

    def describe(self) -> dict[str, Any]:
        """What DescribeMaterializedView answers: LanceDB 0.40's fields and the newer ``query``, together.

        ``source_table`` is LanceDB's and has room for one name: a view over several tables leaves it empty.
        """
        answer: dict[str, Any] = {"kind": self.kind, "query": self.query, "source_table": "", "projections": []}
        answer |= {"filter": None, "limit": None, "format": self.format, "auto_refresh": self.auto_refresh}
        if len(self.sources) == 1:
            answer["source_table"] = self.sources[0]
        if self.select is not None:
            answer["filter"], answer["limit"] = self.select.filter, self.select.limit
            answer["projections"] = [
                {"output_column": item.name, "expression": item.expression} for item in self.select.items
            ]
        if self.udtf is not None:
            answer["udtf"] = {"name": self.udtf.udtf_name, "version": self.udtf.udtf_version, "sha": self.udtf.udtf_sha}
        return answer

    def to_metadata(self) -> dict[str, str]:
        """The schema metadata that makes a table this view."""
        body: dict[str, Any] = {"format": self.format, "kind": self.kind, "query": self.query}
        if self.format == OWN_FORMAT:
            body["dialect"] = self.dialect
            if self.output_schema is not None:
                body["output_schema"] = self.output_schema
            if self.udtf is not None:
                body["udtf_spec"] = self.udtf.to_dict()
        metadata = {DEFINITION_KEY: json.dumps(body, separators=(",", ":"), ensure_ascii=False)}
        if self.auto_refresh:
            # Beside the definition, not in it: LanceDB keeps unknown keys, and rewrites none.
            metadata[AUTO_REFRESH_KEY] = "true"
        return metadata

    @classmethod
    def from_metadata(cls, metadata: Mapping[Any, Any] | None) -> ViewDefinition | None:
        """The definition stored in a table's schema metadata, ours or LanceDB's; ``None`` when it is no view."""
        values = _texts(metadata)
        if DEFINITION_KEY not in values:
            return None
        try:
            body = json.loads(values[DEFINITION_KEY])
            number, kind, query = body["format"], body.get("kind", "query"), body["query"]
        except (ValueError, KeyError, TypeError):
            refuse("the table's mv.definition cannot be read: it is not JSON with a format and a query.")
        auto_refresh = values.get(AUTO_REFRESH_KEY) == "true"
        if number not in (LANCEDB_FORMAT, OWN_FORMAT):
            refuse(
                f"the view's definition has format {number}; this engine reads {LANCEDB_FORMAT} and {OWN_FORMAT}. "
                "Refresh it with the software that created it."
            )
        dialect = body.get("dialect", "lance")
        select = None
        if dialect == "lance":
            from airflow_provider_lance.definitions.lance_sql import read_select

            try:
                select = read_select(query)
            except SqlError as error:
                refuse(f"the view's stored query cannot be read: {error}.")
            if select is None:
                refuse(f"the view's stored query is outside format {number}: {query}")
        udtf = UdtfSpec.from_dict(body["udtf_spec"]) if body.get("udtf_spec") else None
        return cls(kind, query, dialect, select, body.get("output_schema"), udtf, auto_refresh=auto_refresh)

    @classmethod
    def from_request(cls, request: Mapping[str, Any]) -> ViewDefinition:
        """Read a CreateMaterializedView body of either dialect; InvalidInputError (code 13) says what is wrong.

        Columns and types are not checked yet, because that takes the source's schema: :func:`bind` does it.
        """
        request = {key: value for key, value in request.items() if value is not None}
        unknown = sorted(set(request) - _REQUEST_FIELDS)
        if unknown:
            refuse(f"unknown fields in the request: {', '.join(unknown)}.")
        for flag in ("with_no_data", "auto_refresh"):
            if not isinstance(request.get(flag, False), bool):
                refuse(f"{flag} must be true or false.")
        flags = {
            "with_no_data": request.get("with_no_data", True),
            "auto_refresh": request.get("auto_refresh", False),
        }
        if "query" in request:
            return cls._from_lancedb(request, flags)
        kind = request.get("kind")
        kind = "chunker" if kind == "scalar_udtf" else kind
        if kind not in KINDS:
            refuse(f"kind must be one of {', '.join(KINDS)}, not {kind!r}.")
        for key in ("source_query", "output_schema"):
            if not isinstance(request.get(key), str) or not request[key]:
                refuse(f"{key} is required and must be a non-empty string.")
        decode_schema(request["output_schema"])
        spec = request.get("udtf_spec")
        if kind == "query" and spec is not None:
            refuse("udtf_spec must be null for a view of kind query.")
        if kind != "query" and not isinstance(spec, Mapping):
            refuse(f"udtf_spec is required for a view of kind {kind}.")
        udtf = UdtfSpec.from_request(kind, spec) if isinstance(spec, Mapping) else None
        query, dialect, select = _read_source_query(request["source_query"])
        if udtf is not None and dialect == "spark":
            refuse("a table function reads one table: its source query must be SELECT … FROM one table [WHERE …].")
        if kind == "chunker" and select is not None and select.limit is not None:
            refuse("a chunker's source query cannot have a LIMIT: it is refreshed row by row. Use output_limit.")
        return cls(kind, query, dialect, select, request["output_schema"], udtf, **flags)

    @classmethod
    def _from_lancedb(cls, request: Mapping[str, Any], flags: dict[str, bool]) -> ViewDefinition:
        for key in ("kind", "source_query", "udtf_spec"):
            if key in request:
                refuse(f"the request has both query and {key}: send one dialect, not two.")
        from airflow_provider_lance.definitions.lance_sql import looks_like_sql

        query = request["query"]
        if not isinstance(query, str) or not looks_like_sql(query):
            refuse("query must be a SELECT statement.")
        if "output_schema" in request:
            decode_schema(request["output_schema"])
        query, dialect, select = _read_sql(query)
        return cls("query", query, dialect, select, request.get("output_schema"), None, **flags)

    def with_columns(self, names: list[str]) -> ViewDefinition:
        """The definition with ``*`` written out, as LanceDB stores it: later columns do not join an old view."""
        if self.select is None or not self.select.is_star:
            return self
        # The source may be a view itself: its row ids are its own.
        items = tuple(SelectItem(quote(name), name) for name in names if name != SOURCE_ROW_ID)
        select = replace(self.select, items=items)
        return replace(self, select=select, query=select.to_sql())

    def as_spark(self) -> ViewDefinition:
        """The same query, evaluated by Spark: for one table with something Lance's SQL has no words for."""
        return replace(self, dialect="spark", select=None)


def validate_refresh_request(definition: ViewDefinition, request: Mapping[str, Any]) -> None:
    """Refuse (code 13) what a refresh of this view cannot honour; the server calls it before a job exists."""
    request = {key: value for key, value in request.items() if value is not None}
    unknown = sorted(set(request) - _REFRESH_FIELDS)
    if unknown:
        refuse(f"unknown fields in the refresh request: {', '.join(unknown)}.")
    for key in _REFRESH_NUMBERS:
        value = request.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            refuse(f"{key} must be a whole number.")
        least = 0 if key == "output_limit" else 1
        if value < least:
            refuse(f"{key} must be at least {least}, not {value}.")
    if not isinstance(request.get("full", False), bool):
        refuse("full must be true or false.")
    if not isinstance(request.get("cluster", ""), str):
        refuse("cluster must be a name.")
    if "output_limit" in request and definition.kind != "chunker":
        refuse(f"output_limit is for chunker views; this view's kind is {definition.kind}.")
    if "manifest" in request:
        if definition.udtf is None:
            refuse("manifest describes a function's environment; this view has no function.")
        check_manifest(request["manifest"], "manifest")
    if definition.dialect == "opaque":
        refuse(
            "this server stored the view's source query without understanding it and cannot refresh it. It runs SQL "
            '(SELECT …) or JSON {"query": "SELECT …"}.'
        )
    if not definition.incremental:
        for key in ("source_task_size", "intra_applier_concurrency"):
            if key in request:
                refuse(f"{key} applies to views that follow their source's rows; this one is always computed whole.")
    if "src_version" in request and len(definition.sources) > 1:
        refuse(f"src_version is ambiguous: the view reads {', '.join(definition.sources)}.")


def decode_schema(text: str) -> pa.Schema:
    """A base64 Arrow IPC schema, without the row id column that the view adds itself."""
    import pyarrow as pa

    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (ValueError, TypeError, OSError, pa.ArrowException):
        refuse("output_schema is not a base64-encoded Arrow IPC schema.")
    return pa.schema([field for field in schema if field.name != SOURCE_ROW_ID])


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def spark_query(sql: str) -> SparkQuery:
    """A query in Spark's SQL; InvalidInputError says at which place it cannot be read."""
    from airflow_provider_lance.definitions.spark_sql import SparkQuery

    try:
        return SparkQuery(sql)
    except SqlError as error:
        refuse(f"the view's query cannot be read: {error}.")


def _read_source_query(text: str) -> tuple[str, str, SimpleSelect | None]:
    """``source_query`` is SQL or JSON around SQL; anything else is the client's own and is kept untouched."""
    from airflow_provider_lance.definitions.lance_sql import looks_like_sql

    if looks_like_sql(text):
        return _read_sql(text)
    try:
        parsed = json.loads(text)
    except ValueError:
        return text, "opaque", None
    inner = parsed.get("query") if isinstance(parsed, dict) and set(parsed) == {"query"} else None
    return _read_sql(inner) if isinstance(inner, str) and looks_like_sql(inner) else (text, "opaque", None)


def _read_sql(sql: str) -> tuple[str, str, SimpleSelect | None]:
    from airflow_provider_lance.definitions.lance_sql import read_select

    try:
        select = read_select(sql)
    except SqlError as error:
        refuse(f"the view's query cannot be read: {error}.")
    if select is None:
        query = spark_query(sql)
        if not query.tables:
            refuse("the query reads no table.")
        _check_names(query.output_names)
        return query.text, "spark", None
    names = [item.name.lower() for item in select.items]
    if "*" in names and len(names) > 1:
        refuse("`*` must be the only column selected.")
    _check_names(names)
    if SOURCE_ROW_ID in names:
        refuse(f"{SOURCE_ROW_ID} is the view's own column; choose another name.")
    return select.to_sql(), "lance", select


def _check_names(names: list[str]) -> None:
    repeated = repeated_names(names)
    if repeated:
        refuse(f"two columns of the view have the same name: {repeated}. Name them apart with AS.")


def _texts(metadata: Mapping[Any, Any] | None) -> dict[str, str]:
    """Schema metadata with text keys and values, whether they came as bytes (Arrow) or text."""
    decode = lambda value: value.decode() if isinstance(value, bytes) else value  # noqa: E731
    return {decode(key): decode(value) for key, value in (metadata or {}).items()}

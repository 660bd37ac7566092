"""The definition of a materialized view: its kind, its query and its table function, in requests and on disk.

Both dialects of CreateMaterializedView are read into one :class:`ViewDefinition`. On disk it is ``mv.definition`` in
the schema metadata of the view's table, as LanceDB writes it. Importing this module imports neither pyarrow nor
lance_namespace.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.arrow_types import decode_schema, text_metadata
from airflow_provider_lance.definitions.errors import invalid
from airflow_provider_lance.definitions.expressions import format_path, parse_path
from airflow_provider_lance.definitions.functions.table_function_spec import UdtfSpec
from airflow_provider_lance.definitions.json_types import JsonObject
from airflow_provider_lance.definitions.refresh_policy import AUTO, REFRESH_POLICIES, read_policy
from airflow_provider_lance.definitions.sql.text import SelectItem, SimpleSelect, SqlError, quote, repeated_names

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_lance.definitions.sql.spark_sql import SparkQuery

SOURCE_ROW_ID = "__source_row_id"
DEFINITION_KEY = "mv.definition"
AUTO_REFRESH_KEY = "mv.auto_refresh"
POLICY_KEY = "mv.refresh_policy"

# LanceDB reads formats 1 and 2 and reports any other number without touching the view (seen with 0.40).
LANCEDB_FORMAT = 1
OWN_FORMAT = 1000

KINDS = ("query", "udtf", "chunker")
# Functions of Spark SQL that call any static method of Java, and clauses that run a script.
_FOREIGN_CODE = re.compile(r"\b(?:try_)?reflect\b|\bjava_method\b|\busing\s+['\"]", re.IGNORECASE)
_SPEC_FIELDS = ("kind", "source_query", "output_schema", "udtf_spec", "with_no_data", "auto_refresh", "refresh_policy")
_REQUEST_FIELDS = frozenset(["id", "identity", "context", "query", *_SPEC_FIELDS])


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
    refresh_policy: str | None = None

    @property
    def format(self) -> int:
        """The number in ``mv.definition``: 1 for what LanceDB can refresh itself, 1000 for what only we can."""
        return LANCEDB_FORMAT if self.kind == "query" and self.dialect == "lance" else OWN_FORMAT

    @property
    def incremental(self) -> bool:
        """Whether a refresh may follow the changes of the one source instead of computing everything."""
        return self.dialect == "lance" and self.kind in ("query", "chunker")

    @property
    def user_code(self) -> str:
        """The identity of what a refresh runs beside SQL: the view's function, or Java that its query calls."""
        if self.udtf is not None:
            return hashlib.sha256(self.udtf.udtf.encode()).hexdigest()
        if self.dialect != "lance" and _FOREIGN_CODE.search(self.query):
            return hashlib.sha256(self.query.encode()).hexdigest()
        return ""

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
        return None if self.output_schema is None else read_output_schema(self.output_schema)

    def describe(self) -> JsonObject:
        """What DescribeMaterializedView answers: the fields of LanceDB 0.40 and the newer ``query``.

        ``source_table`` is LanceDB's field and holds one name, so it is empty for a view over several tables.
        """
        answer: JsonObject = {
            "kind": self.kind,
            "query": self.query,
            "source_table": self.sources[0] if len(self.sources) == 1 else "",
            "projections": [],
            "filter": None,
            "limit": None,
            "format": self.format,
            "auto_refresh": self.auto_refresh,
            "refresh_policy": self.refresh_policy or AUTO,
        }
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
        body: JsonObject = {"format": self.format, "kind": self.kind, "query": self.query}
        if self.format == OWN_FORMAT:
            body["dialect"] = self.dialect
            if self.output_schema is not None:
                body["output_schema"] = self.output_schema
            if self.udtf is not None:
                body["udtf_spec"] = self.udtf.to_dict()
        metadata = {DEFINITION_KEY: json.dumps(body, separators=(",", ":"), ensure_ascii=False)}
        if self.auto_refresh:
            # LanceDB keeps metadata keys that it does not know, so the flag is a key of its own.
            metadata[AUTO_REFRESH_KEY] = "true"
        if self.refresh_policy is not None:
            metadata[POLICY_KEY] = self.refresh_policy
        return metadata

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str] | Mapping[bytes, bytes] | None) -> ViewDefinition | None:
        """The definition stored in a table's schema metadata, ours or LanceDB's; ``None`` when it is no view."""
        values = text_metadata(metadata)
        if DEFINITION_KEY not in values:
            return None
        try:
            body = json.loads(values[DEFINITION_KEY])
            number, kind, query = body["format"], body.get("kind", "query"), body["query"]
        except (ValueError, KeyError, TypeError):
            message = "the table's mv.definition cannot be read: it is not JSON with a format and a query."
            raise invalid(message) from None
        auto_refresh = values.get(AUTO_REFRESH_KEY) == "true"
        if number not in (LANCEDB_FORMAT, OWN_FORMAT):
            raise invalid(
                f"the view's definition has format {number}; this engine reads {LANCEDB_FORMAT} and {OWN_FORMAT}. "
                "Refresh it with the software that created it."
            )
        dialect = body.get("dialect", "lance")
        select = None
        if dialect == "lance":
            from airflow_provider_lance.definitions.sql.lance_sql import read_select

            try:
                select = read_select(query)
            except SqlError as error:
                raise invalid(f"the view's stored query cannot be read: {error}.") from None
            if select is None:
                raise invalid(f"the view's stored query is outside format {number}: {query}")
        udtf = UdtfSpec.from_dict(body["udtf_spec"]) if body.get("udtf_spec") else None
        policy = values.get(POLICY_KEY)
        definition = cls(kind, query, dialect, select, body.get("output_schema"), udtf, auto_refresh=auto_refresh)
        return replace(definition, refresh_policy=policy if policy in REFRESH_POLICIES else None)

    @classmethod
    def from_request(cls, request: Mapping[str, object]) -> ViewDefinition:
        """Read a CreateMaterializedView body of either dialect; InvalidInputError (code 13) says what is wrong.

        Columns and types are not checked here, because that takes the source's schema: ``view_binding.bind`` does it.
        """
        request = {key: value for key, value in request.items() if value is not None}
        unknown = sorted(set(request) - _REQUEST_FIELDS)
        if unknown:
            raise invalid(f"unknown fields in the request: {', '.join(unknown)}.")
        flags = {"with_no_data": request.get("with_no_data", True), "auto_refresh": request.get("auto_refresh", False)}
        for flag, value in flags.items():
            if not isinstance(value, bool):
                raise invalid(f"{flag} must be true or false.")
        read = cls._from_lancedb(request) if "query" in request else cls._from_spec(request)
        return replace(
            read,
            with_no_data=flags["with_no_data"] is True,
            auto_refresh=flags["auto_refresh"] is True,
            refresh_policy=read_policy(request.get("refresh_policy")),
        )

    @classmethod
    def _from_spec(cls, request: Mapping[str, object]) -> ViewDefinition:
        """Read the dialect of the namespace's specification: a kind, a source query and an output schema."""
        kind = "chunker" if request.get("kind") == "scalar_udtf" else request.get("kind")
        if kind not in KINDS:
            raise invalid(f"kind must be one of {', '.join(KINDS)}, not {kind!r}.")
        kind = str(kind)
        source_query, output_schema = (_required_text(request, key) for key in ("source_query", "output_schema"))
        read_output_schema(output_schema)
        spec = request.get("udtf_spec")
        if kind == "query" and spec is not None:
            raise invalid("udtf_spec must be null for a view of kind query.")
        if kind != "query" and not isinstance(spec, Mapping):
            raise invalid(f"udtf_spec is required for a view of kind {kind}.")
        udtf = UdtfSpec.from_request(kind, spec) if isinstance(spec, Mapping) else None
        query, dialect, select = _read_source_query(source_query)
        if udtf is not None and dialect == "spark":
            raise invalid(
                "a table function reads one table: its source query must be SELECT … FROM one table [WHERE …]."
            )
        if kind == "chunker" and select is not None and select.limit is not None:
            raise invalid("a chunker's source query cannot have a LIMIT: it is refreshed row by row. Use output_limit.")
        return cls(kind, query, dialect, select, output_schema, udtf)

    @classmethod
    def _from_lancedb(cls, request: Mapping[str, object]) -> ViewDefinition:
        """Read LanceDB's dialect: a query, and an output schema where the client has one."""
        for key in ("kind", "source_query", "udtf_spec"):
            if key in request:
                raise invalid(f"the request has both query and {key}: send one dialect, not two.")
        from airflow_provider_lance.definitions.sql.lance_sql import looks_like_sql

        query = request["query"]
        if not isinstance(query, str) or not looks_like_sql(query):
            raise invalid("query must be a SELECT statement.")
        output_schema = None
        if "output_schema" in request:
            output_schema = _required_text(request, "output_schema")
            read_output_schema(output_schema)
        query, dialect, select = _read_sql(query)
        return cls("query", query, dialect, select, output_schema)

    def with_columns(self, names: list[str]) -> ViewDefinition:
        """The definition with ``*`` written out, as LanceDB stores it, so that later columns do not join the view."""
        if self.select is None or not self.select.is_star:
            return self
        # A source that is a view itself has a column of row ids, which belongs to that view alone.
        items = tuple(SelectItem(quote(name), name) for name in names if name != SOURCE_ROW_ID)
        select = replace(self.select, items=items)
        return replace(self, select=select, query=select.to_sql())

    def as_spark(self) -> ViewDefinition:
        """The definition for Spark, because its query of one table is more than Lance's SQL can express."""
        return replace(self, dialect="spark", select=None)


def _required_text(request: Mapping[str, object], key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not value:
        raise invalid(f"{key} is required and must be a non-empty string.")
    return value


def read_output_schema(text: str) -> pa.Schema:
    """The schema of a view's rows, without the row id column that the view adds itself."""
    import pyarrow as pa

    try:
        schema = decode_schema(text)
    except ValueError:
        raise invalid("output_schema is not a base64-encoded Arrow IPC schema.") from None
    return pa.schema([field for field in schema if field.name != SOURCE_ROW_ID])


def spark_query(sql: str) -> SparkQuery:
    """A query in Spark's SQL; InvalidInputError says at which place it cannot be read."""
    from airflow_provider_lance.definitions.sql.spark_sql import SparkQuery

    try:
        return SparkQuery(sql)
    except SqlError as error:
        raise invalid(f"the view's query cannot be read: {error}.") from None


def _read_source_query(text: str) -> tuple[str, str, SimpleSelect | None]:
    """Read ``source_query``, which is SQL or JSON around SQL. Any other text is stored as it is (``opaque``)."""
    from airflow_provider_lance.definitions.sql.lance_sql import looks_like_sql

    if looks_like_sql(text):
        return _read_sql(text)
    try:
        parsed = json.loads(text)
    except ValueError:
        return text, "opaque", None
    inner = parsed.get("query") if isinstance(parsed, dict) and set(parsed) == {"query"} else None
    return _read_sql(inner) if isinstance(inner, str) and looks_like_sql(inner) else (text, "opaque", None)


def _read_sql(sql: str) -> tuple[str, str, SimpleSelect | None]:
    from airflow_provider_lance.definitions.sql.lance_sql import read_select

    try:
        select = read_select(sql)
    except SqlError as error:
        raise invalid(f"the view's query cannot be read: {error}.") from None
    if select is None:
        query = spark_query(sql)
        if not query.tables:
            raise invalid("the query reads no table.")
        _check_names(query.output_names)
        return query.text, "spark", None
    names = [item.name.lower() for item in select.items]
    if "*" in names and len(names) > 1:
        raise invalid("`*` must be the only column selected.")
    _check_names(names)
    if SOURCE_ROW_ID in names:
        raise invalid(f"{SOURCE_ROW_ID} is the view's own column; choose another name.")
    return select.to_sql(), "lance", select


def _check_names(names: list[str]) -> None:
    repeated = repeated_names(names)
    if repeated:
        raise invalid(f"two columns of the view have the same name: {repeated}. Name them apart with AS.")

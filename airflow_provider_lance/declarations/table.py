"""What a table, a view, an index and a check should be: plain objects, which import neither Arrow nor Lance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from airflow_provider_lance.api.ids import Identifier, InvalidIdentifierError, join_id, parse_id
from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.definitions.differences import declared_columns
from airflow_provider_lance.definitions.errors import refusals
from airflow_provider_lance.definitions.refresh_policy import REFRESH_POLICIES
from airflow_provider_lance.definitions.sql.text import near_names
from airflow_provider_lance.functions import UdfColumn

ViewFunctionKind = Literal["chunker", "udtf"]
#: The settings of an index, as ``CreateTableIndex`` has them.
INDEX_OPTIONS = (
    "distance_type",
    "num_partitions",
    "num_sub_vectors",
    "num_bits",
    "sample_rate",
    "max_iterations",
    "target_partition_size",
    "m",
    "ef_construction",
    "with_position",
    "base_tokenizer",
    "language",
    "max_token_length",
    "lower_case",
    "stem",
    "remove_stop_words",
    "ascii_folding",
)
#: The settings of a view's function besides those of ``LanceViewFunction``, as ``table_function_spec`` has them.
FUNCTION_OPTIONS = (
    "name",
    "partition_by_indexed_column",
    "error_handling",
    "num_cpus",
    "num_gpus",
    "memory",
    "manifest",
    "on_error",
    "retries",
)


class DeclarationError(ValueError):
    """A declaration that cannot be read, or that says two things at once; the text names the place."""


@dataclass(frozen=True)
class LanceIndex:
    """An index of a table, for :class:`LanceTable`.

    >>> LanceIndex("embedding", type="IVF_PQ", options={"distance_type": "cosine"})

    :param column: The column of the index.
    :param type: The type of the index, such as ``"BTREE"``, ``"BITMAP"``, ``"FTS"`` or ``"IVF_PQ"``.
    :param name: The name of the index. By default it is the column's name with ``_idx``.
    :param options: The other settings of ``CreateTableIndex``, such as ``distance_type`` and ``num_partitions``. They
        count when the index is created, and are not compared.
    """

    column: str
    type: str
    name: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_text("an index", "column", self.column)
        _check_text(f"the index of {self.column}", "type", self.type)
        check_keys(f"the options of the index of {self.column}", self.options, INDEX_OPTIONS)

    @property
    def index_name(self) -> str:
        """The name of the index in the table."""
        return self.name or f"{self.column}_idx"

    @property
    def is_vector(self) -> bool:
        """Whether the index is trained with rows, so that an empty table cannot have it yet."""
        return self.type.upper().startswith("IVF")

    @property
    def operation(self) -> str:
        """The operation that creates such an index."""
        is_text = self.type.upper() in ("FTS", "INVERTED")
        return "create_table_index" if self.is_vector or is_text else "create_table_scalar_index"


@dataclass(frozen=True)
class LanceChecks:
    """What must be true of a table's rows before its tag moves: the arguments of ``LanceTableCheckOperator``.

    >>> LanceChecks(min_rows=1, not_null=["embedding"])

    :param min_rows: The smallest number of rows that is accepted.
    :param max_rows: The largest number of rows that is accepted.
    :param not_null: The columns whose nulls are counted.
    :param max_nulls: How many nulls each of these columns may have, as a count (``10``) or as a share of the rows
        (``0.01``).
    :param predicate: An SQL predicate that every row must satisfy.
    """

    min_rows: int | None = None
    max_rows: int | None = None
    not_null: Sequence[str] = ()
    max_nulls: float = 0
    predicate: str | None = None

    def arguments(self) -> dict[str, Any]:
        """The arguments of the operator that checks the rows."""
        return {
            "min_rows": self.min_rows,
            "max_rows": self.max_rows,
            "not_null": list(self.not_null),
            "max_nulls": self.max_nulls,
            "predicate": self.predicate,
        }


@dataclass(frozen=True)
class LanceViewFunction:
    """A Python function that makes the rows of a view, for :class:`LanceView`.

    >>> LanceViewFunction("texts:split", output={"id": "int64", "word": "string"}, inputs=["id", "text"])

    :param function: The import path ``"package.module:function"`` of a function that is installed where Spark's workers
        run; or a function or class, which is pickled.
    :param output: The columns of the view and their Arrow types, as ``LanceCreateTableOperator`` takes them.
    :param kind: ``"chunker"`` makes any number of rows of each source row and follows the changes of its source.
        ``"udtf"`` gets whole partitions of the source and is always rebuilt.
    :param inputs: The columns of the query that the function gets. A chunker needs them.
    :param version: The version of the function. Another version is another definition of the view.
    :param batch: Whether a chunker gets a ``pyarrow.RecordBatch`` of many rows instead of the values of one row.
    :param partition_by: The column of the query by whose values the rows of a ``udtf`` are partitioned.
    :param options: The other arguments of ``table_function_spec``, such as ``error_handling`` and ``num_cpus``.
    """

    function: Callable[..., object] | str
    output: Mapping[str, str]
    kind: ViewFunctionKind = "chunker"
    inputs: Sequence[str] | None = None
    version: str = "1"
    batch: bool | None = None
    partition_by: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in get_args(ViewFunctionKind):
            raise DeclarationError(f"The kind of a view's function is 'chunker' or 'udtf', not {self.kind!r}.")
        if not self.output:
            raise DeclarationError("A view's function needs `output`: the columns that it makes, with their types.")
        check_keys("the options of a view's function", self.options, FUNCTION_OPTIONS)

    def __repr__(self) -> str:
        name = self.function if isinstance(self.function, str) else getattr(self.function, "__name__", "function")
        return f"LanceViewFunction({name}, kind={self.kind!r}, inputs={self.inputs}, output={self.output})"

    def fields(self) -> JsonObject:
        """The fields of ``CreateMaterializedView`` besides the query. The function is wrapped when this is called."""
        from airflow_provider_lance.definitions.arrow_types import arrow_schema
        from airflow_provider_lance.functions import encode_schema, table_function_spec

        output = arrow_schema(self.output)
        spec = table_function_spec(
            self.function,
            output=output,
            kind=self.kind,
            inputs=self.inputs,
            version=self.version,
            batch=self.batch,
            partition_by=self.partition_by,
            **self.options,
        )
        return {"kind": self.kind, "output_schema": encode_schema(output), "udtf_spec": spec}


class _Identified:
    """What has the identifier of a table."""

    table_id: Identifier

    @property
    def id(self) -> tuple[str, ...]:
        """The parts of the identifier."""
        return tuple(self.table_id)

    @property
    def name(self) -> str:
        """The identifier as one string."""
        return join_id(self.id)


@dataclass(frozen=True)
class LanceView(_Identified):
    """What a materialized view should be.

    >>> LanceView("long_articles", query="SELECT id, text FROM articles WHERE length(text) > 50", tags=["nightly"])

    :param table_id: The view's identifier, as a list of strings or as one string with ``$`` between its parts.
    :param query: The view's SQL query, or the query of the rows that its function gets.
    :param function: The function that makes the view's rows, if there is one.
    :param auto_refresh: Whether the server refreshes the view when its source changes.
    :param refresh_policy: How the view is refreshed: ``auto`` (the cheaper way, and the default), ``incremental``,
        ``incremental_strict`` or ``full``.
    :param checks: What must be true of the view's rows.
    :param promote: The Lance tag that ``LanceTaskGroup`` moves to the view's new version after the checks.
    :param tags: The labels by which ``LanceTaskGroup`` selects, as in ``select=["tag:nightly"]``.
    :param sources: The tables and views that the query reads. By default they are found in the query.
    """

    table_id: Identifier
    query: str
    function: LanceViewFunction | None = None
    auto_refresh: bool = False
    refresh_policy: str | None = None
    checks: LanceChecks | None = None
    promote: str | None = None
    tags: Sequence[str] = ()
    sources: Sequence[Identifier] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "table_id", _read_id("A view", self.table_id))
        _check_text(f"the view {self.name}", "query", self.query)
        if self.refresh_policy is not None and self.refresh_policy not in REFRESH_POLICIES:
            known = ", ".join(REFRESH_POLICIES)
            raise DeclarationError(
                f"The view {self.name}: `refresh_policy` is one of {known}, not {self.refresh_policy!r}."
            )
        object.__setattr__(self, "tags", _read_tags(f"the view {self.name}", self.tags))
        if self.sources is not None:
            object.__setattr__(self, "sources", [_read_id(f"A source of {self.name}", each) for each in self.sources])

    def request(self) -> JsonObject:
        """The fields of ``CreateMaterializedView`` that define the view."""
        flags: JsonObject = {"auto_refresh": True} if self.auto_refresh else {}
        if self.refresh_policy is not None:
            flags["refresh_policy"] = self.refresh_policy
        if self.function is None:
            return {"query": self.query, **flags}
        try:
            return {"source_query": self.query, **self.function.fields(), **flags}
        except Exception as error:
            if not isinstance(error, (*refusals(), ValueError)):
                raise
            raise DeclarationError(f"The view {self.name} cannot be declared: {error}") from error


@dataclass(frozen=True)
class LanceTable(_Identified):
    """What a table should be: its columns, the rules of its columns, its indices, and the views over it.

    >>> LanceTable("articles", schema={"id": "int64", "text": "string"}, computed={"length": "length(text)"})

    :param table_id: The table's identifier, as a list of strings or as one string with ``$`` between its parts.
    :param schema: The columns that are loaded, and their Arrow types, as ``LanceCreateTableOperator`` takes them.
        Without it a table must exist, and its loaded columns are not compared.
    :param computed: The SQL expression of each column that is computed.
    :param virtual: The Python function of each column that is computed by one, as a
        :class:`~airflow_provider_lance.functions.UdfColumn`, or as the ``virtual_column`` of a request.
    :param views: The materialized views over the table. They have the table's ``tags`` besides their own.
    :param indices: The indices of the table.
    :param checks: What must be true of the table's rows.
    :param promote: The Lance tag that ``LanceTaskGroup`` moves to the table's new version after the checks.
    :param tags: The labels by which ``LanceTaskGroup`` selects, as in ``select=["tag:nightly"]``.
    """

    table_id: Identifier
    schema: Mapping[str, str] | None = None
    computed: Mapping[str, str] = field(default_factory=dict)
    virtual: Mapping[str, UdfColumn | Mapping[str, Any]] = field(default_factory=dict)
    views: Sequence[LanceView] = ()
    indices: Sequence[LanceIndex] = ()
    checks: LanceChecks | None = None
    promote: str | None = None
    tags: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "table_id", _read_id("A table", self.table_id))
        object.__setattr__(self, "tags", _read_tags(f"the table {self.name}", self.tags))
        for part in ("schema", "computed"):
            for column, text in (getattr(self, part) or {}).items():
                _check_text(f"the table {self.name}", f"{part}.{column}", text)
        columns = [*(self.schema or {}), *self.computed]
        columns += [column for name in self.virtual for column in self.outputs(name)]
        for column in columns:
            if columns.count(column) > 1:
                raise DeclarationError(f"The table {self.name} declares its column {column!r} twice.")
        names = [index.index_name for index in self.indices]
        for name in names:
            if names.count(name) > 1:
                raise DeclarationError(f"The table {self.name} declares its index {name!r} twice.")

    def outputs(self, name: str) -> list[str]:
        """The columns that the function of ``virtual[name]`` fills."""
        rule = self.virtual[name]
        if isinstance(rule, UdfColumn):
            return rule.output_columns(name)
        return declared_columns({"name": name, "virtual_column": rule})

    def entries(self) -> dict[str, JsonObject]:
        """The entries of ``AlterTableAddColumns`` that declare the rules. Functions are wrapped when this is called."""
        found: dict[str, JsonObject] = {
            name: {"name": name, "computed": expression} for name, expression in self.computed.items()
        }
        for name, rule in self.virtual.items():
            try:
                entry = rule.entry(name) if isinstance(rule, UdfColumn) else dict(rule)
            except ValueError as error:
                raise DeclarationError(f"The table {self.name}: {error}") from error
            found[name] = {"name": name, "virtual_column": entry}
        return found


def check_keys(where: str, given: Mapping[str, object], known: Sequence[str]) -> None:
    """Refuse a key that is not known, with the known keys that look like it."""
    for key in given:
        if key not in known:
            raise DeclarationError(unknown_key(where, key, known))


def unknown_key(where: str, key: str, known: Sequence[str]) -> str:
    near = near_names(key, known)
    meant = f" Did you mean {near}?" if near else f" Known are {', '.join(known)}."
    return f"{where[:1].upper()}{where[1:]}: there is no key {key!r}.{meant}"


def _check_text(where: str, part: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise DeclarationError(f"{where[:1].upper()}{where[1:]}: `{part}` must be a text, not {value!r}.")


def _read_id(what: str, identifier: Identifier) -> list[str]:
    try:
        parts = parse_id(identifier)
    except InvalidIdentifierError as error:
        raise DeclarationError(str(error)) from None
    if not parts:
        raise DeclarationError(f"{what} needs a name, such as 'articles' or 'sales$orders'.")
    return parts


def _read_tags(where: str, tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str):
        raise DeclarationError(f"{where[:1].upper()}{where[1:]}: `tags` is a list of texts, not the text {tags!r}.")
    return tuple(tags)

"""Compares a declaration with a namespace, table by table and view by view, into a :class:`Plan`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.missing_features import missing_feature
from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.declarations.collection import Declarations
from airflow_provider_lance.declarations.columns import compare_columns, compare_schema, described_type
from airflow_provider_lance.declarations.graph import column_levels, make_graph, rule_inputs
from airflow_provider_lance.declarations.namespace_state import (
    Namespace,
    TableState,
    namespace_exists,
    read_indices,
    read_table,
    read_view,
)
from airflow_provider_lance.declarations.plan import Change, Part, Plan, dropped, read_parts
from airflow_provider_lance.declarations.table import DeclarationError, LanceIndex, LanceTable, LanceView
from airflow_provider_lance.declarations.views import definition_differences
from airflow_provider_lance.definitions.differences import declared_columns, has_rule

#: Several names of one type of index: clients ask for the one, and servers tell the other.
_SAME_INDEX = {"fts": "inverted"}


def make_plan(
    declarations: Declarations,
    namespace: Namespace,
    *,
    allow_drop: bool = False,
    only: Part | Collection[Part] | None = None,
) -> Plan:
    """Compare a declaration with a namespace. It reads and changes nothing."""
    if declarations.is_manifest:
        raise DeclarationError(
            "This is a manifest that `airflow-lance manifest` wrote: it says what a catalog had, without the functions "
            "of its columns, so it cannot be applied."
        )
    comparison = _Comparison(namespace, read_parts(only), allow_drop)
    for table in declarations.tables:
        comparison.add_table(table)
    for node in make_graph(declarations).nodes:
        if isinstance(node.declared, LanceView) and "views" in comparison.parts:
            comparison.add_view(node.declared)
    return Plan(declarations.count(), tuple(comparison.changes), tuple(comparison.remarks))


class _Comparison:
    """The changes that were found so far."""

    def __init__(self, namespace: Namespace, parts: frozenset[str], allow_drop: bool) -> None:
        self.namespace, self.parts, self.allow_drop = namespace, parts, allow_drop
        self.changes: list[Change] = []
        self.remarks: list[str] = []
        self._spaces: set[tuple[str, ...]] = set()
        self._no_views: str | None = None

    def add_table(self, table: LanceTable) -> None:
        state = read_table(self.namespace, table.id)
        if state is None or state.version is None:
            self._add_missing_table(table)
            return
        if state.is_view:
            self._refuse("table", table.id, "it is a materialized view there; declare it as a view")
            return
        if "columns" in self.parts:
            self.changes += self._columns(table, state)
        if "indices" in self.parts and table.indices:
            self.changes += self._indices(table, state)

    def _add_missing_table(self, table: LanceTable) -> None:
        if "tables" not in self.parts:
            self._refuse("table", table.id, "it is not there")
            return
        if not table.schema:
            self._refuse("table", table.id, "it is not there, and without a `schema` it cannot be created")
            return
        self._add_namespaces(table.id)
        columns = ", ".join(f"{name} {kind}" for name, kind in table.schema.items())
        self.changes.append(Change("create", "table", table.id, columns, table=table))
        if "columns" in self.parts:
            self.changes += [_created(table, entry) for entry in _entries(table)]
        if "indices" in self.parts:
            self.changes += self._new_indices(table, table.indices, rows=0)

    def _add_namespaces(self, table_id: Sequence[str]) -> None:
        for length in range(1, len(table_id)):
            space = tuple(table_id[:length])
            if space not in self._spaces:
                self._spaces.add(space)
                if not namespace_exists(self.namespace, space):
                    self.changes.append(Change("create", "namespace", space, "it is not there"))

    def _columns(self, table: LanceTable, state: TableState) -> Iterator[Change]:
        rules = state.rules
        yield from self._plain_columns(table, state)
        entries = _entries(table)
        compared = compare_columns(rules, entries)
        for entry in compared.new:
            yield _created(table, entry)
        for entry, differences in compared.different:
            yield self._changed(table, state, entry, differences)
        declared = {*(table.schema or {}), *(name for entry in entries for name in declared_columns(entry))}
        for name, metadata in rules.items():
            if name not in declared and (has_rule(metadata) or table.schema is not None):
                yield self._undeclared(table, name)

    def _undeclared(self, table: LanceTable, name: str) -> Change:
        action, text = dropped(self.allow_drop)
        readers = [rule for rule, inputs in rule_inputs(table).items() if name in inputs]
        if readers and self.allow_drop:
            action, text = "refuse", f"it is not declared, and the rule of {', '.join(readers)} reads it: declare it"
        return Change(action, "column", table.id, text, name=name, table=table)

    def _plain_columns(self, table: LanceTable, state: TableState) -> Iterator[Change]:
        schema = table.schema or {}
        compared = compare_schema(state.fields, schema)
        for name in compared.unknown:
            self.remarks.append(f"The server's word for the type of {table.name}.{name} is not known: not compared.")
        for name in compared.missing:
            if problem := _cannot_add(name, schema[name]):
                yield Change("refuse", "column", table.id, problem, name=name, table=table)
            else:
                yield Change("create", "column", table.id, schema[name], name=name, table=table)
        for difference in compared.different:
            text = (
                f"its type is {difference.there} there and {difference.here} here; a type is not changed in place: "
                "write the table anew, or declare the type that is there"
            )
            yield Change("refuse", "column", table.id, text, name=difference.part, table=table)
        for name, metadata in state.rules.items():
            if name in schema and has_rule(metadata):
                text = "it is computed there, and the declaration has it among the columns that are loaded"
                yield Change("refuse", "column", table.id, text, name=name, table=table)

    def _changed(self, table: LanceTable, state: TableState, entry: JsonObject, differences: str) -> Change:
        """A rule that differs: it is replaced where the column can keep its values, and refused or recreated else."""
        types = {str(described["name"]): described for described in state.fields}
        plain = [name for name in declared_columns(entry) if name in types and not has_rule(state.rules[name])]
        name = str(entry["name"])
        if plain:
            text = f"{differences}; a backfill would overwrite what was loaded: choose another name"
            return Change("refuse", "column", table.id, text, name=name, table=table)
        for output in (entry.get("virtual_column") or {}).get("outputs") or []:
            there = types.get(str(output["column"]))
            if there is None:
                continue
            stated = {"name": output["column"], "type": output["data_type"], "nullable": True}
            if described_type(there) != described_type(stated):
                if self.allow_drop:
                    return Change("change", "column", table.id, differences, name, entry, table, recreate=True)
                text = f"{differences}; values of another type cannot be kept: allow_drop drops the column first"
                return Change("refuse", "column", table.id, text, name=name, table=table)
        return Change("change", "column", table.id, differences, name, entry, table)

    def _indices(self, table: LanceTable, state: TableState) -> Iterator[Change]:
        there = {str(index.get("index_name")): index for index in read_indices(self.namespace, table.id)}
        missing = [index for index in table.indices if index.index_name not in there]
        yield from self._new_indices(table, missing, state.rows)
        for index in table.indices:
            found = there.get(index.index_name)
            differences = [] if found is None else _index_differences(found, index)
            if not differences:
                continue
            text = "; ".join(differences)
            if self.allow_drop:
                yield Change("change", "index", table.id, text, index.index_name, table=table, index=index)
            else:
                text += "; allow_drop drops it and creates it again"
                yield Change("refuse", "index", table.id, text, index.index_name, table=table, index=index)
        for name in there:
            if name not in [index.index_name for index in table.indices]:
                action, text = dropped(self.allow_drop)
                yield Change(action, "index", table.id, text, name=name, table=table)

    def _new_indices(self, table: LanceTable, indices: Sequence[LanceIndex], rows: int | None) -> Iterator[Change]:
        for index in indices:
            if index.is_vector and rows == 0:
                self.remarks.append(
                    f"The index {table.name}.{index.index_name} is made from rows: apply again once there are some."
                )
                continue
            text = f"{index.type} on {index.column}"
            yield Change("create", "index", table.id, text, index.index_name, table=table, index=index)

    def add_view(self, view: LanceView) -> None:
        state = read_table(self.namespace, view.id)
        request = view.request()
        if state is None or state.version is None:
            lacking = self._lacks_views(view)
            if lacking:
                self._refuse("view", view.id, lacking)
                return
            self._add_namespaces(view.id)
            self.changes.append(Change("create", "view", view.id, _one_line(view.query), request=request, view=view))
            return
        stored = read_view(self.namespace, state)
        if stored is None:
            self._refuse("view", view.id, "it is a table there, and no materialized view")
            return
        if not stored.query:
            self.remarks.append(f"The server does not tell the query of {view.name}: it was not compared.")
        differences = definition_differences(stored, view, request)
        if differences:
            text = "; ".join(map(str, differences))
            self.changes.append(Change("change", "view", view.id, text, request=request, view=view))

    def _lacks_views(self, view: LanceView) -> str:
        """Why the namespace can have no view at all; empty where it can. It is asked once."""
        if self._no_views is None:
            self._no_views = ""
            try:
                self.namespace.call("describe_materialized_view", {"id": list(view.id)})
            except WireError as error:
                if lacking := missing_feature(error):
                    self._no_views = lacking[0]
                elif not error.missing:
                    raise
        return self._no_views

    def _refuse(self, kind: str, declared_id: tuple[str, ...], text: str) -> None:
        self.changes.append(Change("refuse", "view" if kind == "view" else "table", declared_id, text))


def _cannot_add(name: str, kind: str) -> str:
    """Why a column without values cannot be added; empty where it can."""
    from airflow_provider_lance.definitions.arrow_types import arrow_schema, null_expression

    declared = arrow_schema({name: kind}).field(0)
    if not declared.nullable:
        return "it is not there, and the table's rows have no value for it: declare it without `not null`"
    try:
        null_expression(declared.type)
    except ValueError as error:
        return str(error)
    return ""


def _entries(table: LanceTable) -> list[JsonObject]:
    """The rules of a table, each after those that it reads."""
    entries = table.entries()
    return [entries[name] for level in column_levels(table, entries) for name in level]


def _created(table: LanceTable, entry: JsonObject) -> Change:
    return Change("create", "column", table.id, rule_text(entry), str(entry["name"]), entry, table)


def rule_text(entry: Mapping[str, object]) -> str:
    """The rule of a column in one line."""
    if entry.get("computed") is not None:
        return _one_line(str(entry["computed"]))
    virtual = entry.get("virtual_column")
    virtual = virtual if isinstance(virtual, dict) else {}
    inputs = ", ".join(virtual.get("input_columns") or [])
    return f"{virtual.get('udf_name') or 'a function'}({inputs}), version {virtual.get('udf_version')}"


def _index_differences(there: JsonObject, index: LanceIndex) -> list[str]:
    found = []
    kind = str(there.get("index_type") or "")
    if kind and _index_word(kind) != _index_word(index.type):
        found.append(f"its type is {kind} there and {index.type} here")
    columns = [str(column) for column in there.get("columns") or []]
    if columns and columns != [index.column]:
        found.append(f"its column is {join_id(columns)} there and {index.column} here")
    return found


def _index_word(kind: str) -> str:
    word = kind.lower().replace("_", "")
    return _SAME_INDEX.get(word, word)


def _one_line(text: str) -> str:
    return " ".join(text.split())

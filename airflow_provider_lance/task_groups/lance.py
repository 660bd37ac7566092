"""``LanceTaskGroup``: the tasks of a declaration, in the order of its dependencies.

A declaration is read while the DAG is parsed, from objects or from files. The namespace is not asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from airflow.sdk import TaskGroup

from airflow_provider_lance.assets.lance import create_asset
from airflow_provider_lance.configuration import DEFAULT_CONNECTION
from airflow_provider_lance.declarations import Declarations, LanceTable, LanceView, load_declarations
from airflow_provider_lance.declarations.graph import Graph, Node, make_graph
from airflow_provider_lance.declarations.selection import select_nodes
from airflow_provider_lance.operators.apply import LanceApplyOperator
from airflow_provider_lance.operators.backfill import LanceBackfillColumnOperator
from airflow_provider_lance.operators.check import LanceTableCheckOperator
from airflow_provider_lance.operators.materialized_view import LanceRefreshMaterializedViewOperator
from airflow_provider_lance.operators.tag import LanceUpdateTagOperator

if TYPE_CHECKING:
    from airflow.sdk import DAG, BaseOperator

    from airflow_provider_lance.declarations.collection import DeclarationSource

_NO_NAME = re.compile(r"[^\w.-]")


class TaskGroupArguments(TypedDict, total=False):
    """The arguments of Airflow's ``TaskGroup`` besides ``group_id``."""

    group_display_name: str
    prefix_group_id: bool
    parent_group: TaskGroup | None
    dag: DAG
    default_args: dict[str, Any]
    tooltip: str
    doc_md: str | None
    ui_color: str
    ui_fgcolor: str
    add_suffix_on_collision: bool


class LanceTaskGroup(TaskGroup):
    """The tasks that bring tables and views to a declaration and fill them.

    ``apply`` creates and changes what differs. Each column with a rule has a backfill, after those of the columns that
    it reads. Each view has a refresh, after the columns and views that it reads. Checks come after what they check and
    before what reads it. A tag moves at the end, when everything that reads its table has succeeded.

    The guide is ``docs/task_group.md``.

    :param group_id: The id of the task group.
    :param declaration: The declaration: a :class:`~airflow_provider_lance.declarations.LanceTable`, a
        :class:`~airflow_provider_lance.declarations.LanceView`, a list of them, or the path of a YAML file, of a folder
        of such files, or of a manifest that ``airflow-lance manifest`` wrote. A relative path belongs to the folder of
        the DAG file.
    :param select: The tables, columns and views that get tasks, such as ``["articles", "long_*", "tag:nightly"]``. A
        ``+`` before a name adds what it reads, and one behind it what reads it. By default it is everything.
    :param exclude: The tables, columns and views that get no tasks, in the same words.
    :param apply: Whether the group begins with a task that applies the declaration. By default it does, unless the
        declaration is a manifest.
    :param allow_drop: Whether that task drops columns and indices that are not declared.
    :param backfill_args: The arguments of every backfill, such as ``{"cluster": "gpu"}``.
    :param refresh_args: The arguments of every refresh, such as ``{"skip_if_unchanged": True}``.
    :param asset_authority: The name of the namespace in assets. With it, backfills and refreshes have the assets of
        their tables as outlets.
    :param lance_conn_id: The id of the namespace's connection.
    :param kwargs: The other arguments of Airflow's ``TaskGroup``, such as ``default_args`` and ``tooltip``.
    """

    def __init__(
        self,
        group_id: str = "lance",
        *,
        declaration: DeclarationSource,
        select: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
        apply: bool | None = None,
        allow_drop: bool = False,
        backfill_args: Mapping[str, Any] | None = None,
        refresh_args: Mapping[str, Any] | None = None,
        asset_authority: str | None = None,
        lance_conn_id: str = DEFAULT_CONNECTION,
        **kwargs: Unpack[TaskGroupArguments],
    ) -> None:
        super().__init__(group_id=group_id, **kwargs)  # type: ignore[arg-type]  # attrs types a converter's argument so
        fileloc = self.dag.fileloc
        declarations = load_declarations(declaration, folder=Path(fileloc).parent if fileloc else None)
        graph = make_graph(declarations)
        chosen = select_nodes(graph, select, exclude)
        shared = {"task_group": self, "dag": self.dag, "lance_conn_id": lance_conn_id}
        tasks = _Tasks(graph, shared, asset_authority)
        applies = not declarations.is_manifest if apply is None else apply
        if applies and chosen:
            tasks.add_apply(_selected(declarations, chosen), allow_drop)
        for node in chosen:
            tasks.add_work(node, dict(backfill_args or {}), dict(refresh_args or {}))
        for node in chosen:
            tasks.add_promotion(node, chosen)


class _Tasks:
    """The tasks that were made so far: the last one of each node, which others wait for."""

    def __init__(self, graph: Graph, shared: dict[str, Any], asset_authority: str | None) -> None:
        self._graph = graph
        self._shared = shared
        self._authority = asset_authority
        self._apply: BaseOperator | None = None
        self._last: dict[Node, BaseOperator] = {}
        self._checks: dict[Node, LanceTableCheckOperator] = {}
        self._ids: set[str] = set()

    def add_apply(self, declarations: Declarations, allow_drop: bool) -> None:
        """The first task. Indices come after the values that they are made from."""
        self._apply = LanceApplyOperator(
            task_id="apply",
            declaration=_objects(declarations),
            allow_drop=allow_drop,
            only=["tables", "columns", "views"],
            **self._shared,
        )

    def add_work(self, node: Node, backfill_args: dict[str, Any], refresh_args: dict[str, Any]) -> None:
        """What computes a node: a backfill, a refresh, and what checks and indexes a table."""
        if node.kind == "column":
            self._chain(node, self._backfill(node, backfill_args))
        elif node.kind == "view":
            self._chain(node, self._refresh(node, refresh_args))
        declared = node.declared
        if isinstance(declared, LanceTable) and node.kind == "table" and declared.indices:
            arguments = self._arguments("index", node)
            table = replace(declared, views=())
            self._chain(node, LanceApplyOperator(declaration=table, only="indices", **arguments))
        if node.kind != "column" and declared.checks is not None:
            arguments = {**self._arguments("check", node), **declared.checks.arguments()}
            check = LanceTableCheckOperator(table_id=list(declared.id), **arguments)
            self._chain(node, check)
            self._checks[node] = check

    def add_promotion(self, node: Node, chosen: Sequence[Node]) -> None:
        """The task that moves a node's tag, after the node and after everything chosen that reads it."""
        tag = node.declared.promote
        if tag is None or node.kind == "column":
            return
        check = self._checks.get(node)
        promote = LanceUpdateTagOperator(
            table_id=list(node.declared.id),
            tag=tag,
            version="latest" if check is None else check.output,
            create_if_missing=True,
            **self._arguments("promote", node),
        )
        for above in self._waits_for(node):
            above >> promote
        for reader in self._graph.descendants(node):
            if reader in chosen and reader in self._last:
                self._last[reader] >> promote

    def _backfill(self, node: Node, arguments: dict[str, Any]) -> BaseOperator:
        settings = {**self._arguments("backfill", node), "on_conflict": "wait", **arguments}
        return LanceBackfillColumnOperator(table_id=list(node.declared.id), column=str(node.column), **settings)

    def _refresh(self, node: Node, arguments: dict[str, Any]) -> BaseOperator:
        settings = {**self._arguments("refresh", node), "on_conflict": "wait", **arguments}
        return LanceRefreshMaterializedViewOperator(table_id=list(node.declared.id), **settings)

    def _chain(self, node: Node, task: BaseOperator) -> None:
        """Put a task behind the last one of its node, or behind what the node reads."""
        for above in self._waits_for(node):
            above >> task
        self._last[node] = task

    def _waits_for(self, node: Node) -> list[BaseOperator]:
        if node in self._last:
            return [self._last[node]]
        above = [self._last[parent] for parent in self._graph.nearest(node, self._last)]
        return above or ([self._apply] if self._apply is not None else [])

    def _arguments(self, verb: str, node: Node) -> dict[str, Any]:
        """The task's id and name. What a task id must not have is replaced, and a number makes it unique."""
        name = _NO_NAME.sub("_", f"{verb}.{node.name.replace('$', '.')}")
        task_id, number = name, 1
        while task_id in self._ids:
            number += 1
            task_id = f"{name}_{number}"
        self._ids.add(task_id)
        found = {**self._shared, "task_id": task_id, "task_display_name": f"{verb} {node.name}"}
        found["trigger_rule"] = "none_failed"  # a refresh that ends as skipped does not skip what comes after it
        if self._authority is not None and verb in ("backfill", "refresh"):
            found["outlets"] = [create_asset(authority=self._authority, table_id=list(node.declared.id))]
        return found


def _selected(declarations: Declarations, chosen: Sequence[Node]) -> Declarations:
    """The declarations of the chosen nodes. A table with a chosen column is applied as a whole."""
    ids = {node.declared.id for node in chosen}
    tables = tuple(table for table in declarations.tables if table.id in ids)
    return replace(declarations, tables=tables, views=tuple(view for view in declarations.views if view.id in ids))


def _objects(declarations: Declarations) -> list[LanceTable | LanceView]:
    """The tables without their views, and the views, as an operator takes them."""
    return [*(replace(table, views=()) for table in declarations.tables), *declarations.views]

"""``select`` and ``exclude``: which nodes of a graph are meant, in the words that dbt and Cosmos use.

A selector is a name (``articles``, ``articles.length``, ``long_articles``), a pattern (``long_*``) or a tag
(``tag:nightly``). A ``+`` before it adds everything that it reads, and one behind it everything that reads it. Several
selectors are a union; those with commas between them must all be true.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from airflow_provider_lance.declarations.graph import Graph, Node
from airflow_provider_lance.declarations.table import DeclarationError
from airflow_provider_lance.definitions.sql.text import near_names

_TAG = "tag:"


def select_nodes(
    graph: Graph, select: str | Sequence[str] | None = None, exclude: str | Sequence[str] | None = None
) -> list[Node]:
    """The selected nodes in the order of the graph. A selector that means nothing is an error."""
    chosen = set(graph.nodes)
    if select is not None:
        chosen = _union(graph, "select", select)
    if exclude is not None:
        chosen -= _union(graph, "exclude", exclude)
    return [node for node in graph.nodes if node in chosen]


def _union(graph: Graph, argument: str, selectors: str | Sequence[str]) -> set[Node]:
    listed = selectors.split() if isinstance(selectors, str) else [word for each in selectors for word in each.split()]
    found: set[Node] = set()
    for selector in listed:
        parts = [_matching(graph, argument, part) for part in selector.split(",")]
        found |= set.intersection(*parts)
    return found


def _matching(graph: Graph, argument: str, selector: str) -> set[Node]:
    word = selector.removeprefix("+").removesuffix("+")
    if word.startswith(_TAG):
        tag = word.removeprefix(_TAG)
        found = {node for node in graph.nodes if any(fnmatchcase(each, tag) for each in node.tags)}
    else:
        # A table stands for its columns as well.
        found = {node for node in graph.nodes if fnmatchcase(node.name, word) or fnmatchcase(node.declared.name, word)}
    if not found:
        raise DeclarationError(_nothing(graph, argument, selector, word))
    for node in list(found):
        if selector.startswith("+"):
            found |= graph.ancestors(node)
        if selector.endswith("+"):
            found |= graph.descendants(node)
    return found


def _nothing(graph: Graph, argument: str, selector: str, word: str) -> str:
    if word.startswith(_TAG):
        known = sorted({tag for node in graph.nodes for tag in node.tags})
        near, kind = near_names(word.removeprefix(_TAG), known), "tag"
    else:
        known = [node.name for node in graph.nodes]
        near, kind = near_names(word, known), "table, column or view"
    meant = f" Did you mean {near}?" if near else f" There are {', '.join(known[:10])}." if known else ""
    return f"{argument} has {selector!r}, and the declaration has no such {kind}.{meant}"

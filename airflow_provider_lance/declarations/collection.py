"""``Declarations``: all tables and views that belong together, from objects, from a file or from a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_provider_lance.declarations.table import DeclarationError, LanceTable, LanceView

#: What an operator or a task group takes as a declaration.
DeclarationSource = str | os.PathLike[str] | LanceTable | LanceView | Sequence[LanceTable | LanceView]


@dataclass(frozen=True)
class Declarations:
    """Tables and views. The views of tables are among ``views``, with the tags of their tables.

    ``is_manifest`` is true for what ``airflow-lance manifest`` wrote about a catalog: it says what there was, and not
    what there should be.
    """

    tables: tuple[LanceTable, ...] = ()
    views: tuple[LanceView, ...] = ()
    is_manifest: bool = False

    def __post_init__(self) -> None:
        everything: list[LanceTable | LanceView] = [*self.tables, *self.views]
        ids = [declared.id for declared in everything]
        for declared in everything:
            if ids.count(declared.id) > 1:
                raise DeclarationError(f"{declared.name} is declared twice.")

    @classmethod
    def of(cls, declared: Iterable[LanceTable | LanceView], *, is_manifest: bool = False) -> Declarations:
        """Collect tables and views, and the views of the tables."""
        tables: list[LanceTable] = []
        views: list[LanceView] = []
        for each in declared:
            if isinstance(each, LanceTable):
                tables.append(each)
                for view in each.views:
                    views.append(replace(view, tags=tuple(dict.fromkeys((*each.tags, *view.tags)))))
            elif isinstance(each, LanceView):
                views.append(each)
            else:
                raise DeclarationError(f"A declaration is a LanceTable or a LanceView, not {each!r}.")
        return cls(tuple(tables), tuple(views), is_manifest)

    def count(self) -> str:
        """How many tables and views there are, in words."""
        tables, views = len(self.tables), len(self.views)
        return f"{tables} table{'' if tables == 1 else 's'} and {views} view{'' if views == 1 else 's'}"


def load_declarations(source: DeclarationSource, *, folder: str | os.PathLike[str] | None = None) -> Declarations:
    """Read declarations from objects, from a YAML or JSON file, or from all such files in and below a folder.

    :param source: A :class:`LanceTable`, a :class:`LanceView`, a list of them, or a path.
    :param folder: The folder that a relative path belongs to. By default it is the working directory.
    :return: The tables and views.
    """
    if isinstance(source, LanceTable | LanceView):
        return Declarations.of([source])
    if not isinstance(source, str | os.PathLike):
        return Declarations.of(source)
    from airflow_provider_lance.declarations.yaml_file import read_path

    content = read_path(Path(folder or "") / source)
    return Declarations.of([*content.tables, *content.views], is_manifest=content.is_manifest)

"""Where a table, a branch or a tag is, without I/O: which request tells, how to read its answer, whether it moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_lance.api.versions import WITH_VERSION, version_of


@dataclass(frozen=True)
class Place:
    """What is watched: a table's newest version, a branch's, or the version a tag points to."""

    table_id: list[str]
    branch: str | None = None
    tag: str | None = None

    @property
    def key(self) -> str:
        """Names the stored position; a branch and a tag of the same name are two things."""
        return f"tag:{self.tag}" if self.tag else f"version:{self.branch or 'main'}"

    def request(self) -> tuple[str, dict[str, Any]]:
        if self.tag:
            return "get_table_tag_version", {"id": self.table_id, "tag": self.tag}
        return "describe_table", {"id": self.table_id, "branch": self.branch, **WITH_VERSION}

    def read(self, answer: Mapping[str, Any]) -> int | None:
        return version_of(answer)

    def describe(self) -> str:
        of = f"tag {self.tag!r} of " if self.tag else f"branch {self.branch!r} of " if self.branch else ""
        return f"{of}table {'$'.join(self.table_id)}"


@dataclass(frozen=True)
class Goal:
    """When a wait is over: at a version above ``after``, at exactly ``equals``, or at any other than ``moved_from``.

    With none of them it is enough that the place exists; ``exists`` counts a table without a version too.
    """

    after: int | None = None
    equals: int | None = None
    moved_from: int | None = None
    exists: bool = False

    def reached(self, present: bool, version: int | None) -> bool:
        if not present or (version is None and not self.exists):
            return False
        if self.equals is not None and version != self.equals:
            return False
        if self.after is not None and (version is None or version <= self.after):
            return False
        return self.moved_from is None or version != self.moved_from

    def describe(self) -> str:
        if self.equals is not None:
            return f"version {self.equals}"
        if self.after is not None:
            return f"a version above {self.after}"
        if self.moved_from is not None:
            return f"another version than {self.moved_from}"
        return "to exist"

"""A table, a branch or a tag whose version is watched, and the version that a sensor waits for. It does no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.versions import WITH_VERSION


@dataclass(frozen=True)
class TableReference:
    """What has a version: a table, one of its branches, or one of its tags."""

    table_id: list[str]
    branch: str | None = None
    tag: str | None = None

    @property
    def key(self) -> str:
        """The name under which a watcher stores the version. A branch and a tag of the same name have two keys."""
        return f"tag:{self.tag}" if self.tag else f"version:{self.branch or 'main'}"

    def request(self) -> tuple[str, dict[str, object]]:
        """The operation and the fields that ask for the version."""
        if self.tag:
            return "get_table_tag_version", {"id": self.table_id, "tag": self.tag}
        return "describe_table", {"id": self.table_id, "branch": self.branch, **WITH_VERSION}

    def describe(self, delimiter: str) -> str:
        """The reference in words, for messages."""
        part = f"tag {self.tag!r} of " if self.tag else f"branch {self.branch!r} of " if self.branch else ""
        return f"{part}table {join_id(self.table_id, delimiter)}"


@dataclass(frozen=True)
class VersionGoal:
    """When a wait is over: at a version above ``after``, at exactly ``equals``, or at any other than ``moved_from``.

    Without any of the three it is enough that the table, branch or tag has a version. With ``exists`` a table that
    was only declared, and so has no version yet, counts too.
    """

    after: int | None = None
    equals: int | None = None
    moved_from: int | None = None
    exists: bool = False

    def is_reached(self, present: bool, version: int | None) -> bool:
        if not present or (version is None and not self.exists):
            return False
        if self.equals is not None and version != self.equals:
            return False
        if self.after is not None and (version is None or version <= self.after):
            return False
        return self.moved_from is None or version != self.moved_from

    def describe(self) -> str:
        """The goal in words, for messages."""
        if self.equals is not None:
            return f"version {self.equals}"
        if self.after is not None:
            return f"a version above {self.after}"
        if self.moved_from is not None:
            return f"another version than {self.moved_from}"
        return "to exist"

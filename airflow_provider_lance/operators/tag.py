"""Tags: create, move, delete. A tag is a name for one version of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_lance.api.ids import Identifier
from airflow_provider_lance.api.versions import WITH_VERSION
from airflow_provider_lance.operators.base import LanceBaseOperator, choice, log_reason
from airflow_provider_lance.operators.rendered import given, literal, version_number

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_NO_TAG, _TAG_EXISTS = 8, 9
_MAIN = "main"


class _TagOperator(LanceBaseOperator):
    """An operator about one tag of one table."""

    template_fields: Sequence[str] = (*LanceBaseOperator.template_fields, "table_id", "tag")

    def __init__(self, *, table_id: Identifier, tag: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table_id = table_id
        self.tag = tag

    def tag_place(self, table_id: list[str], tag: str) -> tuple[int, str | None] | None:
        """The version a tag points to and the branch it is of; ``None`` if there is no such tag."""
        answer = self.call("get_table_tag_version", {"id": table_id, "tag": tag}, tolerate=(_NO_TAG,))
        return (int(answer["version"]), answer.get("branch") or None) if answer is not None else None

    def tag_version(self, table_id: list[str], tag: str) -> int | None:
        """Where a tag points to; ``None`` if there is no such tag."""
        place = self.tag_place(table_id, tag)
        return place[0] if place is not None else None


class _PointingOperator(_TagOperator):
    """A tag operator with a version to point to."""

    template_fields: Sequence[str] = (*_TagOperator.template_fields, "version", "branch")

    def __init__(
        self,
        *,
        version: int | str | Mapping[str, Any] = "latest",
        branch: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.version = version
        self.branch = branch

    def resolve(self, table_id: list[str]) -> tuple[int, str | None]:
        """A number, ``"latest"``, or the version another tag points to; and the branch that version is of."""
        found = literal(self.version)
        if isinstance(found, Mapping):
            found = version_number("version", found)
        wanted, branch = str(found if found is not None else "").strip(), given(self.branch)
        if not wanted:
            raise AirflowFailException("`version` is empty: give a number, 'latest' or another tag.")
        if wanted.isdigit():
            return int(wanted), branch
        if wanted == "latest":
            answer = self.answer("describe_table", {"id": table_id, "branch": branch, **WITH_VERSION})
            if answer.get("version") is None:
                raise AirflowException(f"The table {'$'.join(table_id)} has no version yet: nothing was written to it.")
            return int(answer["version"]), branch
        place = self.tag_place(table_id, wanted)
        if place is None:
            raise AirflowException(
                f"{wanted!r} is neither a version number, nor 'latest', nor a tag of {'$'.join(table_id)}."
            )
        version, tagged = place
        if branch is not None and tagged is not None and branch != tagged:
            raise AirflowFailException(f"The tag {wanted!r} is on the branch {tagged!r}, not on {branch!r}.")
        return version, tagged or branch

    def done(self, context: Context, table_id: list[str], version: int, before: int | None) -> dict[str, Any]:
        was = f"version {before} → {version}" if before is not None else f"created at version {version}"
        self.log.info("Tag %s of table %s: %s.", self.tag, "$".join(table_id), was)
        self.publish(context, table_id, version=version)
        return {"table_id": table_id, "tag": self.tag, "version": version, "previous_version": before}


class LanceCreateTagOperator(_PointingOperator):
    """Give a version a name (``CreateTableTag``).

    :param table_id: the table. (templated)
    :param tag: the new tag. (templated)
    :param version: a number, ``"latest"``, another tag, or the dict another Lance task returned. (templated)
    :param branch: of the version; a tag brings its own. (templated)
    :param if_exists: for a tag that is there: ``fail``; ``skip`` (succeed if it is at this very version, and fail with
        both versions otherwise); or ``move`` it.
    :return: ``{"table_id", "tag", "version", "previous_version"}``.
    """

    def __init__(self, *, if_exists: Literal["fail", "skip", "move"] = "fail", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        choice("if_exists", if_exists, "fail", "skip", "move")
        self.if_exists = if_exists

    def execute(self, context: Context) -> dict[str, Any]:
        table_id = self.parse_id(self.table_id)
        version, branch = self.resolve(table_id)
        fields = {"id": table_id, "tag": self.tag, "version": version, "branch": branch}
        if (
            self.call("create_table_tag", fields, tolerate=() if self.if_exists == "fail" else (_TAG_EXISTS,))
            is not None
        ):
            return self.done(context, table_id, version, None)
        place = self.tag_place(table_id, self.tag)
        before = place[0] if place is not None else None
        if self.if_exists == "skip" and place is not None:
            if (place[0], place[1] or _MAIN) == (version, branch or _MAIN):
                self.log.info("The tag %s is at version %s already (if_exists=skip).", self.tag, version)
                return self.done(context, table_id, version, version)
            failed = AirflowFailException(
                f"The tag {self.tag!r} of {'$'.join(table_id)} is at {_said(*place)} there and would be at "
                f"{_said(version, branch)} here. if_exists='move' moves it."
            )
            raise log_reason(self.log, failed)
        self.answer("update_table_tag", fields)
        return self.done(context, table_id, version, before)


def _said(version: int, branch: str | None) -> str:
    return f"version {version}" + (f" of branch {branch}" if branch else "")


class LanceUpdateTagOperator(_PointingOperator):
    """Move a tag to another version (``UpdateTableTag``): promote, or roll back.

    :param table_id: the table. (templated)
    :param tag: the tag. (templated)
    :param version: a number, ``"latest"``, another tag, or the dict another Lance task returned. (templated)
    :param branch: of the version; a tag brings its own. (templated)
    :param create_if_missing: create the tag when there is none.
    :return: ``{"table_id", "tag", "version", "previous_version"}``; the previous version is the way back.
    """

    def __init__(self, *, create_if_missing: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.create_if_missing = create_if_missing

    def execute(self, context: Context) -> dict[str, Any]:
        table_id = self.parse_id(self.table_id)
        version, branch = self.resolve(table_id)
        before = self.tag_version(table_id, self.tag)
        fields = {"id": table_id, "tag": self.tag, "version": version, "branch": branch}
        if before is None:
            if not self.create_if_missing:
                raise AirflowFailException(
                    f"The table {'$'.join(table_id)} has no tag {self.tag!r}; create_if_missing=True would create it."
                )
            self.answer("create_table_tag", fields)
        else:
            self.answer("update_table_tag", fields)
        return self.done(context, table_id, version, before)


class LanceDeleteTagOperator(_TagOperator):
    """Delete a tag; the version it pointed to stays (``DeleteTableTag``).

    :param table_id: the table. (templated)
    :param tag: the tag. (templated)
    :param if_missing: ``fail``, or ``skip`` the deletion and succeed.
    :return: ``{"table_id", "tag", "deleted", "previous_version"}``.
    """

    def __init__(self, *, if_missing: Literal["fail", "skip"] = "fail", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        choice("if_missing", if_missing, "fail", "skip")
        self.if_missing = if_missing

    def execute(self, context: Context) -> dict[str, Any]:
        table_id = self.parse_id(self.table_id)
        before = self.tag_version(table_id, self.tag)
        tolerate = (_NO_TAG,) if self.if_missing == "skip" else ()
        answer = self.call("delete_table_tag", {"id": table_id, "tag": self.tag}, tolerate=tolerate)
        done = f"deleted, it was version {before}" if answer is not None else "not there (if_missing=skip)"
        self.log.info("Tag %s of table %s: %s.", self.tag, "$".join(table_id), done)
        return {"table_id": table_id, "tag": self.tag, "deleted": answer is not None, "previous_version": before}

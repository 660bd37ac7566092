"""Operators that create, move and delete a tag, which is a name for one version of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Required, Unpack

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.operators.base import LanceTableOperator
from airflow_provider_lance.tasks.errors import log_failure
from airflow_provider_lance.tasks.operator_arguments import TableArguments
from airflow_provider_lance.tasks.templating import as_version, choice, none_if_blank, parse_literal

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.tasks.templating import TaskOutput

IfTagExists = Literal["fail", "skip", "move"]
IfTagMissing = Literal["fail", "skip"]
_MAIN = "main"


class TagArguments(TableArguments):
    """The arguments of the operators of one tag."""

    tag: Required[str]


class TagVersionArguments(TagArguments, total=False):
    """The arguments of the operators that point a tag to a version."""

    version: int | str | TaskOutput
    branch: str | None


class BranchVersion(NamedTuple):
    """A version of a table, and the branch that it belongs to. ``None`` is the main branch."""

    version: int
    branch: str | None

    def same_as(self, other: BranchVersion) -> bool:
        return (self.version, self.branch or _MAIN) == (other.version, other.branch or _MAIN)

    def describe(self) -> str:
        return f"version {self.version}" + (f" of branch {self.branch}" if self.branch else "")


class _TagOperator(LanceTableOperator):
    """The base class of the operators of one tag."""

    template_fields: Sequence[str] = (*LanceTableOperator.template_fields, "tag")

    def __init__(self, *, tag: str, **kwargs: Unpack[TableArguments]) -> None:
        super().__init__(**kwargs)
        self.tag = tag

    def find_tag(self, table_id: list[str], tag: str) -> BranchVersion | None:
        """The version that a tag points to; ``None`` if there is no such tag."""
        fields = {"id": table_id, "tag": tag}
        answer = self.call_tolerant("get_table_tag_version", fields, tolerate=(ErrorCode.TABLE_TAG_NOT_FOUND,))
        return None if answer is None else BranchVersion(int(answer["version"]), answer.get("branch") or None)


class _TagVersionOperator(_TagOperator):
    """The base class of the operators that point a tag to a version."""

    template_fields: Sequence[str] = (*_TagOperator.template_fields, "version", "branch")

    def __init__(
        self,
        *,
        version: int | str | TaskOutput = "latest",
        branch: str | None = None,
        **kwargs: Unpack[TagArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.version = version
        self.branch = branch

    def resolve(self, table_id: list[str]) -> BranchVersion:
        """The version that the arguments name by a number, by ``"latest"`` or by another tag."""
        found = parse_literal(self.version)
        if isinstance(found, Mapping):
            found = as_version("version", found)
        wanted, branch = str(found if found is not None else "").strip(), none_if_blank(self.branch)
        if not wanted:
            raise AirflowFailException("`version` is empty: give a number, 'latest' or another tag.")
        if wanted.isdigit():
            return BranchVersion(int(wanted), branch)
        name = self.hook.join_id(table_id)
        if wanted == "latest":
            newest = self.describe(table_id, branch).get("version")
            if newest is None:
                raise AirflowException(f"The table {name} has no version yet: nothing was written to it.")
            return BranchVersion(int(newest), branch)
        other = self.find_tag(table_id, wanted)
        if other is None:
            raise AirflowException(f"{wanted!r} is neither a version number, nor 'latest', nor a tag of {name}.")
        if branch is not None and other.branch is not None and branch != other.branch:
            raise AirflowFailException(f"The tag {wanted!r} is on the branch {other.branch!r}, not on {branch!r}.")
        return BranchVersion(other.version, other.branch or branch)

    def report(self, context: Context, table_id: list[str], version: int, previous: int | None) -> JsonObject:
        """Log the tag's version, write the asset's event, and make the dict that the task returns."""
        change = f"version {previous} → {version}" if previous is not None else f"created at version {version}"
        self.log.info("Tag %s of table %s: %s.", self.tag, self.hook.join_id(table_id), change)
        self.publish(context, table_id, version=version)
        return {"table_id": table_id, "tag": self.tag, "version": version, "previous_version": previous}


class LanceCreateTagOperator(_TagVersionOperator):
    """Give a version of a table a name (``CreateTableTag``).

    The guide is ``docs/operators/create_tag.md``.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param tag: The name of the new tag. (templated)
    :param version: The version: a number, ``"latest"``, the name of another tag, or the dict that another Lance task
        returned. (templated)
    :param branch: The branch of the version. By default it is the main branch, or that of the tag which ``version``
        names. (templated)
    :param if_exists: What happens if the tag exists. ``fail`` fails the task. ``skip`` succeeds if the tag is at this
        version, and fails with both versions otherwise. ``move`` moves the tag.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``table_id``, ``tag``, ``version`` and ``previous_version``.
    """

    def __init__(self, *, if_exists: IfTagExists = "fail", **kwargs: Unpack[TagVersionArguments]) -> None:
        super().__init__(**kwargs)
        self.if_exists = choice("if_exists", if_exists, IfTagExists)

    def execute(self, context: Context) -> JsonObject:
        table_id = self.parse_id(self.table_id)
        wanted = self.resolve(table_id)
        fields = {"id": table_id, "tag": self.tag, **wanted._asdict()}
        tolerate = () if self.if_exists == "fail" else (ErrorCode.TABLE_TAG_ALREADY_EXISTS,)
        if self.call_tolerant("create_table_tag", fields, tolerate=tolerate) is not None:
            return self.report(context, table_id, wanted.version, None)
        previous = self.find_tag(table_id, self.tag)
        if self.if_exists == "skip" and previous is not None:
            if previous.same_as(wanted):
                self.log.info("The tag %s is at version %s already (if_exists=skip).", self.tag, wanted.version)
                return self.report(context, table_id, wanted.version, wanted.version)
            failed = AirflowFailException(
                f"The tag {self.tag!r} of {self.hook.join_id(table_id)} is at {previous.describe()} there and would "
                f"be at {wanted.describe()} here. if_exists='move' moves it."
            )
            raise log_failure(self.log, failed)
        self.call("update_table_tag", fields)
        return self.report(context, table_id, wanted.version, previous.version if previous is not None else None)


class LanceUpdateTagOperator(_TagVersionOperator):
    """Move a tag to another version, to promote it or to roll back (``UpdateTableTag``).

    The guide is ``docs/operators/update_tag.md``.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param tag: The name of the tag. (templated)
    :param version: The version: a number, ``"latest"``, the name of another tag, or the dict that another Lance task
        returned. (templated)
    :param branch: The branch of the version. By default it is the main branch, or that of the tag which ``version``
        names. (templated)
    :param create_if_missing: Whether the tag is created if there is none.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``table_id``, ``tag``, ``version``, and ``previous_version`` to roll back to.
    """

    def __init__(self, *, create_if_missing: bool = False, **kwargs: Unpack[TagVersionArguments]) -> None:
        super().__init__(**kwargs)
        self.create_if_missing = create_if_missing

    def execute(self, context: Context) -> JsonObject:
        table_id = self.parse_id(self.table_id)
        wanted = self.resolve(table_id)
        previous = self.find_tag(table_id, self.tag)
        if previous is None and not self.create_if_missing:
            raise AirflowFailException(
                f"The table {self.hook.join_id(table_id)} has no tag {self.tag!r}; "
                "create_if_missing=True would create it."
            )
        operation = "create_table_tag" if previous is None else "update_table_tag"
        self.call(operation, {"id": table_id, "tag": self.tag, **wanted._asdict()})
        return self.report(context, table_id, wanted.version, previous.version if previous is not None else None)


class LanceDeleteTagOperator(_TagOperator):
    """Delete a tag. The version that it pointed to stays (``DeleteTableTag``).

    The guide is ``docs/operators/delete_tag.md``.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param tag: The name of the tag. (templated)
    :param if_missing: What happens if there is no such tag. ``fail`` fails the task, and ``skip`` succeeds.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``table_id``, ``tag``, ``deleted`` and ``previous_version``.
    """

    def __init__(self, *, if_missing: IfTagMissing = "fail", **kwargs: Unpack[TagArguments]) -> None:
        super().__init__(**kwargs)
        self.if_missing = choice("if_missing", if_missing, IfTagMissing)

    def execute(self, context: Context) -> JsonObject:
        table_id = self.parse_id(self.table_id)
        found = self.find_tag(table_id, self.tag)
        previous = found.version if found is not None else None
        tolerate = (ErrorCode.TABLE_TAG_NOT_FOUND,) if self.if_missing == "skip" else ()
        answer = self.call_tolerant("delete_table_tag", {"id": table_id, "tag": self.tag}, tolerate=tolerate)
        done = f"deleted, it was version {previous}" if answer is not None else "not there (if_missing=skip)"
        self.log.info("Tag %s of table %s: %s.", self.tag, self.hook.join_id(table_id), done)
        self.publish(context, table_id, version=previous)
        return {"table_id": table_id, "tag": self.tag, "deleted": answer is not None, "previous_version": previous}

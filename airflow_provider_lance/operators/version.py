"""Publishing a version of a table that was staged before: ``stage_version`` and ``LanceCreateTableVersionOperator``.

``stage_version`` imports ``lance`` when it is called, so it is used inside a ``@task.lance`` function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Unpack

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.operators.base import LanceTableOperator
from airflow_provider_lance.tasks.errors import log_failure, task_error
from airflow_provider_lance.tasks.operator_arguments import TableArguments
from airflow_provider_lance.tasks.templating import as_integer, as_mapping, as_text, choice, none_if_blank

if TYPE_CHECKING:
    import lance
    from airflow.providers.common.compat.sdk import Context
    from lance_namespace import LanceNamespace

    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.tasks.templating import Reader, TaskOutput

IfVersionExists = Literal["fail", "skip", "skip_task"]
#: The fields of ``CreateTableVersion`` that describe a staged version, and what a rendered value must be.
_STAGED_FIELDS: dict[str, Reader] = {
    "version": as_integer,
    "manifest_path": as_text,
    "manifest_size": as_integer,
    "e_tag": as_text,
    "metadata": as_text,
    "naming_scheme": as_text,
}


class LanceCreateTableVersionOperator(LanceTableOperator):
    """Make a staged manifest the table's next version, if that version does not exist yet (``CreateTableVersion``).

    Lance itself does this on every commit to a table with managed versions. This operator publishes a manifest that
    was staged before, after a check or together with other tables. :func:`stage_version` stages one in a task.

    The guide is ``docs/operators/create_table_version.md``.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param version: The number of the version to create. (templated)
    :param manifest_path: The path of the staged manifest in the object store, inside the table. (templated)
    :param manifest_size: The size of the staged manifest in bytes. (templated)
    :param e_tag: The entity tag of the staged manifest. (templated)
    :param metadata: The metadata of the version. (templated)
    :param naming_scheme: The naming scheme of manifests, ``V1`` or ``V2``.
    :param branch: The branch of the table. By default it is the main branch. (templated)
    :param staged: A dict with any of these fields, as ``stage_version`` returns it. An argument that is given takes
        precedence over its field. (templated)
    :param if_exists: What happens if the version exists. ``fail`` fails the task. ``skip`` succeeds if the ``e_tag``
        of its manifest is this one, and fails otherwise. ``skip_task`` ends the task as skipped, because another
        commit came first.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``table_id`` and the fields of the created version, such as ``version`` and ``manifest_path``.
    """

    template_fields: Sequence[str] = (
        *LanceTableOperator.template_fields,
        "version",
        "manifest_path",
        "manifest_size",
        "e_tag",
        "metadata",
        "branch",
        "staged",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"metadata": "json", "staged": "json"}

    def __init__(
        self,
        *,
        version: int | str | None = None,
        manifest_path: str | None = None,
        manifest_size: int | str | None = None,
        e_tag: str | None = None,
        metadata: dict[str, str] | None = None,
        naming_scheme: str | None = None,
        branch: str | None = None,
        staged: TaskOutput | str | None = None,
        if_exists: IfVersionExists = "fail",
        **kwargs: Unpack[TableArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.if_exists = choice("if_exists", if_exists, IfVersionExists)
        if staged is None and (version is None or manifest_path is None):
            raise ValueError("Give `version` and `manifest_path`, or `staged`.")
        self.version = version
        self.manifest_path = manifest_path
        self.manifest_size = manifest_size
        self.e_tag = e_tag
        self.metadata = metadata
        self.naming_scheme = naming_scheme
        self.branch = branch
        self.staged = staged

    def execute(self, context: Context) -> JsonObject:
        table_id, fields = self.parse_id(self.table_id), self._fields()
        failure: AirflowException | None = None
        conflict = False
        created: object = None
        try:
            created = self.hook.call("create_table_version", {"id": table_id, **fields}).get("version")
        except WireError as error:
            failure, conflict = task_error(error), error.conflict
        if failure is not None:
            if self.if_exists == "fail" or not conflict:
                raise log_failure(self.log, failure)
            created = self._existing_version(table_id, fields, failure)
        described = created if isinstance(created, dict) else {"version": created}
        known = {key: value for key, value in described.items() if value is not None}
        result: JsonObject = {"table_id": table_id, **known}
        self.log.info("Created version %s of table %s.", result.get("version"), self.hook.join_id(table_id))
        self.publish(context, table_id, version=result.get("version"))
        return result

    def _fields(self) -> JsonObject:
        """The request's fields: the arguments, and what ``staged`` has beside them."""
        staged = as_mapping("staged", self.staged) or {}
        fields: JsonObject = {}
        for name, read in {**_STAGED_FIELDS, "branch": as_text}.items():
            value = none_if_blank(getattr(self, name))
            value = read(name, staged.get(name) if value is None else value)
            if value is not None:
                fields[name] = value
        for name in ("version", "manifest_path"):
            if name not in fields:
                raise AirflowFailException(f"There is no `{name}` to create a version from.")
        return fields

    def _existing_version(self, table_id: list[str], fields: JsonObject, failure: AirflowException) -> JsonObject:
        """The version that exists already, if ``if_exists`` accepts it. Raises otherwise."""
        branch, version = fields.get("branch"), fields["version"]
        newest = self.describe(table_id, branch).get("version")
        # A number beyond the next version is a conflict, too, and there is no such version.
        if newest is None or int(newest) < version:
            raise log_failure(self.log, failure)
        if self.if_exists == "skip_task":
            raise AirflowSkipException(f"Version {version} of {self.hook.join_id(table_id)} is there already.")
        answer = self.call("describe_table_version", {"id": table_id, "branch": branch, "version": version})
        found: JsonObject = answer.get("version") or {}
        if not fields.get("e_tag") or found.get("e_tag") != fields["e_tag"]:
            failed = AirflowFailException(
                f"{failure} Its manifest has e_tag {found.get('e_tag')}, this one {fields.get('e_tag')}: they are "
                "not known to be the same. if_exists='skip_task' ends the task as skipped then."
            )
            raise log_failure(self.log, failed)
        self.log.info("Version %s is there already, with this manifest (if_exists=skip).", version)
        return found


class NotStagedError(RuntimeError):
    """The version could not be staged; the table is as it was."""


def stage_version(
    namespace: LanceNamespace, table_id: Sequence[str], write: Callable[[lance.LanceDataset], object]
) -> JsonObject:
    """Do everything for a new version of a table except publishing it.

    ``write`` runs on the table. Its manifest is kept, and its commit is held back until a
    :class:`LanceCreateTableVersionOperator` publishes it, after a check or together with other tables. The guide is
    ``docs/operators/create_table_version.md``.

    >>> @task.lance
    ... def stage(*, namespace):
    ...     return stage_version(namespace, ["orders"], lambda table: table.delete("amount < 0"))

    :param namespace: The connected namespace. It must manage the table's versions.
    :param table_id: The table's identifier, as a list of strings.
    :param write: A function that gets the opened ``lance.LanceDataset`` and makes exactly one change to it.
    :return: The fields of ``CreateTableVersion``, for the operator's argument ``staged``.
    """
    import lance
    from lance_namespace import DescribeTableRequest

    described = namespace.describe_table(DescribeTableRequest(id=list(table_id)))
    if not getattr(described, "managed_versioning", None):
        raise NotStagedError(
            f"The namespace does not manage the versions of {list(table_id)}: a change would be published at once. "
            "Create the table in a namespace with table_version_tracking_enabled=true."
        )
    held: list[JsonObject] = []
    table = lance.dataset(namespace_client=_holding_namespace(namespace, held), table_id=list(table_id))
    problem: Exception | None = None
    try:
        write(table)
    except Exception as error:  # Lance reports the held-back commit as one whose outcome is unknown
        problem = error
    if not held:
        if problem is not None:
            raise problem
        raise NotStagedError("The function changed nothing, so there is no version to stage.")
    return {name: held[-1][name] for name in _STAGED_FIELDS if held[-1].get(name) is not None}


def _holding_namespace(namespace: LanceNamespace, held: list[JsonObject]) -> LanceNamespace:
    """A namespace that forwards what opening a table needs. It refuses a commit and adds its request to ``held``."""
    from lance_namespace import LanceNamespace
    from lance_namespace.errors import ConcurrentModificationError

    class Holding(LanceNamespace):
        def namespace_id(self) -> str:
            return f"Holding({namespace.namespace_id()})"

        def create_table_version(self, request: Any) -> NoReturn:
            held.append(dict(request) if isinstance(request, Mapping) else request.to_dict())
            # After this error Lance keeps the staged manifest, as for a commit whose outcome is unknown.
            raise ConcurrentModificationError("The version is held back on purpose.")

        describe_table = namespace.describe_table
        list_table_versions = namespace.list_table_versions
        describe_table_version = namespace.describe_table_version
        table_exists = namespace.table_exists

    return Holding()

"""``stage_version``: do everything for a new table version except publishing it.

For a task that prepares a version which a later ``LanceCreateTableVersionOperator`` publishes, after a check or
together with other tables. Imports ``lance`` when called: use it inside ``@task.lance``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace

_KEPT = ("version", "manifest_path", "manifest_size", "e_tag", "metadata", "naming_scheme")


class NotStagedError(RuntimeError):
    """The version could not be staged; the table is as it was."""


def stage_version(namespace: Any, table_id: Sequence[str], write: Callable[[Any], Any]) -> dict[str, Any]:
    """Run ``write`` on the table, keep the manifest it makes and hold back its commit.

    >>> @task.lance
    ... def stage(*, namespace):
    ...     return stage_version(namespace, ["orders"], lambda table: table.delete("amount < 0"))

    :param namespace: the connected namespace; it must manage the table's versions.
    :param write: gets the opened ``lance.LanceDataset`` and makes exactly one change to it.
    :return: the fields of ``CreateTableVersion``, for the operator's ``staged``.
    """
    import lance

    described = namespace.describe_table({"id": list(table_id)})
    if not getattr(described, "managed_versioning", None):
        raise NotStagedError(
            f"The namespace does not manage the versions of {'$'.join(table_id)}: a change would be published at once. "
            "Create the table in a namespace with table_version_tracking_enabled=true."
        )
    holding = _holding(namespace)
    table = lance.dataset(namespace_client=holding, table_id=list(table_id))
    problem: Exception | None = None
    try:
        write(table)
    except Exception as error:  # Lance reports the held-back commit as one whose outcome is unknown
        problem = error
    if holding.held is None:
        if problem is not None:
            raise problem
        raise NotStagedError("The function changed nothing, so there is no version to stage.")
    return {name: holding.held[name] for name in _KEPT if holding.held.get(name) is not None}


def _holding(namespace: LanceNamespace) -> Any:
    """The namespace, except that creating a version is noted down and refused."""
    from lance_namespace import LanceNamespace
    from lance_namespace.errors import ConcurrentModificationError

    class Holding(LanceNamespace):
        held: dict[str, Any] | None = None

        def namespace_id(self) -> str:
            return f"Holding({namespace.namespace_id()})"

        def create_table_version(self, request: Any) -> Any:
            self.held = dict(request) if isinstance(request, Mapping) else request.to_dict()
            # With this answer Lance keeps the staged manifest, as for a commit whose outcome is unknown.
            raise ConcurrentModificationError("The version is held back on purpose.")

    for name in ("describe_table", "list_table_versions", "describe_table_version", "table_exists"):
        setattr(Holding, name, _forward(namespace, name))
    return Holding()


def _forward(namespace: Any, name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        return getattr(namespace, name)(*args)

    return method

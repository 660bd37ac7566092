"""Tags and branches: names for versions, of main and of branches.

pylance's namespace looks for a tag's version on main whatever branch the request names, and calls a missing source of
a branch its own fault. Methods are operations of the wire by name.
"""

from __future__ import annotations

from typing import Any

from lance_namespace.errors import TableTagAlreadyExistsError, TableTagNotFoundError

from airflow_provider_lance.api.models import model
from airflow_provider_lance.namespace.catalog import Catalog, names_branch


class Refs:
    """Tags that point to a branch, and what a new branch starts from; the rest is pylance's."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def create_table_tag(self, request: Any) -> Any:
        if not names_branch(request.branch):
            return self._catalog.call("create_table_tag", request)
        dataset = self._catalog.open(request.id, branch=request.branch, version=request.version)
        if request.tag in dataset.tags.list():
            raise TableTagAlreadyExistsError(f"There is a tag {request.tag!r} already.")
        dataset.tags.create(request.tag, (request.branch, request.version))
        return model("CreateTableTagResponse")()

    def update_table_tag(self, request: Any) -> Any:
        if not names_branch(request.branch):
            return self._catalog.call("update_table_tag", request)
        dataset = self._catalog.open(request.id, branch=request.branch, version=request.version)
        if request.tag not in dataset.tags.list():
            raise TableTagNotFoundError(f"There is no tag {request.tag!r}.")
        dataset.tags.update(request.tag, (request.branch, request.version))
        return model("UpdateTableTagResponse")()

    def create_table_branch(self, request: Any) -> Any:
        self._catalog.open(request.id, branch=request.from_branch, version=request.from_version)
        return self._catalog.call("create_table_branch", request)

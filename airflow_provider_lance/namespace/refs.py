"""Tags and branches: names for versions, of main and of branches.

pylance's namespace looks for a tag's version on main whatever branch the request names, and calls a missing source of
a branch its own fault. Methods are operations of the wire by name.
"""

from __future__ import annotations

import re
from typing import Any

from lance_namespace.errors import InvalidInputError, TableTagAlreadyExistsError, TableTagNotFoundError

from airflow_provider_lance.api.models import model
from airflow_provider_lance.namespace.catalog import Catalog, names_branch
from airflow_provider_lance.namespace.tree import cut_page

# Lance takes letters of any alphabet, and then finds none of the table's tags any more.
_TAG = re.compile(r"[A-Za-z0-9._-]+")
_BRANCH = re.compile(r"[A-Za-z0-9._/-]+")


class Refs:
    """Tags and branches: their names, their pages, where they point; the rest is pylance's."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def list_table_tags(self, request: Any) -> Any:
        tags = self._catalog.call("list_table_tags", _whole(request)).tags or {}
        page, token = cut_page(sorted(tags), request.page_token, request.limit)
        return model("ListTableTagsResponse")(tags={name: tags[name] for name in page}, page_token=token)

    def list_table_branches(self, request: Any) -> Any:
        branches = self._catalog.call("list_table_branches", _whole(request)).branches or {}
        page, token = cut_page(sorted(branches), request.page_token, request.limit)
        kept = {name: branches[name] for name in page}
        return model("ListTableBranchesResponse")(branches=kept, page_token=token)

    def create_table_tag(self, request: Any) -> Any:
        _check_name("tag", _TAG, request.tag)
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
        _check_name("branch", _BRANCH, request.name)
        self._catalog.open(request.id, branch=request.from_branch, version=request.from_version)
        return self._catalog.call("create_table_branch", request)


def _whole(request: Any) -> Any:
    """The request for everything: pylance takes a limit and a page and regards neither."""
    return request.model_copy(update={"limit": None, "page_token": None})


def _check_name(what: str, allowed: re.Pattern[str], name: str) -> None:
    if not allowed.fullmatch(name):
        raise InvalidInputError(
            f"{name[:60]!r} cannot be the name of a {what}: a name has ASCII letters, digits and any of . _ - only, a "
            "branch's also slashes."
        )

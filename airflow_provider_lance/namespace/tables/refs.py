"""Tags and branches: names for versions of main and of branches.

pylance's namespace looks for a tag's version on main whatever branch the request names, and reports a missing source
of a branch as an internal error. Each method is an operation of the wire by name.
"""

from __future__ import annotations

import re

from lance_namespace import (
    CreateTableBranchRequest,
    CreateTableBranchResponse,
    CreateTableTagRequest,
    CreateTableTagResponse,
    LanceNamespace,
    ListTableBranchesRequest,
    ListTableBranchesResponse,
    ListTableTagsRequest,
    ListTableTagsResponse,
    UpdateTableTagRequest,
    UpdateTableTagResponse,
)
from lance_namespace.errors import InvalidInputError, TableTagAlreadyExistsError, TableTagNotFoundError

from airflow_provider_lance.namespace.requests.values import cut_page, id_of
from airflow_provider_lance.namespace.tables.catalog import Catalog, names_branch

# Lance accepts letters of any alphabet in a tag, and then no longer finds any tag of the table.
_TAG = re.compile(r"[A-Za-z0-9._-]+")
_BRANCH = re.compile(r"[A-Za-z0-9._/-]+")
# pylance accepts a limit and a page token in a listing, and ignores both.
_WHOLE_LISTING = {"limit": None, "page_token": None}


class Refs:
    """The tags and branches of tables, as far as pylance's own operations do not suffice."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def list_table_tags(self, request: ListTableTagsRequest) -> ListTableTagsResponse:
        whole = request.model_copy(update=_WHOLE_LISTING)
        tags = self._catalog.run(LanceNamespace.list_table_tags, whole).tags or {}
        page, token = cut_page(sorted(tags), request.page_token, request.limit)
        return ListTableTagsResponse(tags={name: tags[name] for name in page}, page_token=token)

    def list_table_branches(self, request: ListTableBranchesRequest) -> ListTableBranchesResponse:
        whole = request.model_copy(update=_WHOLE_LISTING)
        branches = self._catalog.run(LanceNamespace.list_table_branches, whole).branches or {}
        page, token = cut_page(sorted(branches), request.page_token, request.limit)
        return ListTableBranchesResponse(branches={name: branches[name] for name in page}, page_token=token)

    def create_table_tag(self, request: CreateTableTagRequest) -> CreateTableTagResponse:
        _check_name("tag", _TAG, request.tag)
        if not names_branch(request.branch):
            return self._catalog.run(LanceNamespace.create_table_tag, request)
        dataset = self._catalog.open(id_of(request), branch=request.branch, version=request.version)
        if request.tag in dataset.tags.list():
            raise TableTagAlreadyExistsError(f"There is a tag {request.tag!r} already.")
        dataset.tags.create(request.tag, (request.branch, request.version))
        return CreateTableTagResponse()

    def update_table_tag(self, request: UpdateTableTagRequest) -> UpdateTableTagResponse:
        if not names_branch(request.branch):
            return self._catalog.run(LanceNamespace.update_table_tag, request)
        dataset = self._catalog.open(id_of(request), branch=request.branch, version=request.version)
        if request.tag not in dataset.tags.list():
            raise TableTagNotFoundError(f"There is no tag {request.tag!r}.")
        dataset.tags.update(request.tag, (request.branch, request.version))
        return UpdateTableTagResponse()

    def create_table_branch(self, request: CreateTableBranchRequest) -> CreateTableBranchResponse:
        _check_name("branch", _BRANCH, request.name)
        self._catalog.open(id_of(request), branch=request.from_branch, version=request.from_version)
        return self._catalog.run(LanceNamespace.create_table_branch, request)


def _check_name(what: str, allowed: re.Pattern[str], name: str) -> None:
    if not allowed.fullmatch(name):
        raise InvalidInputError(
            f"{name[:60]!r} cannot be the name of a {what}: a name has ASCII letters, digits and any of . _ - only, a "
            "branch's also slashes."
        )

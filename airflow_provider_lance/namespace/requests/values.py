"""Values that many requests carry in the same form: ids, words of a fixed set, limits and page tokens."""

from __future__ import annotations

from typing import Protocol

from lance_namespace.errors import InvalidInputError


class RequestWithId(Protocol):
    """Any request about one namespace, table, view or transaction."""

    @property
    def id(self) -> list[str] | None: ...


class RequestWithBranch(RequestWithId, Protocol):
    """Any request about one branch of a table."""

    @property
    def branch(self) -> str | None: ...


def id_of(request: RequestWithId) -> list[str]:
    """The id of a request. The root namespace may be given as None or as an empty list."""
    return list(request.id or [])


def read_word(name: str, value: str | None, words: tuple[str, ...]) -> str:
    """One of the spec's words, in any case, PascalCase or snake_case; the first is the default."""
    wanted = (value or words[0]).replace("_", "").lower()
    for word in words:
        if word.replace("_", "") == wanted:
            return word
    raise InvalidInputError(f"{name} is {value!r}; it must be one of {', '.join(words)}.")


def check_limit(limit: int | None) -> None:
    """Refuse a page that could hold nothing."""
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit is {limit}; it must be at least 1.")


def cut_page(names: list[str], token: str | None, limit: int | None) -> tuple[list[str], str | None]:
    """The names after ``token`` (the last name of the previous page), and the token of the next page, if any."""
    check_limit(limit)
    rest = [name for name in names if not token or name > token]
    if limit is None or len(rest) <= limit:
        return rest, None
    return rest[:limit], rest[limit - 1]

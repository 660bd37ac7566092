"""Which requests may take any amount of memory or stack, and so must not run in the server's own process.

Lance plans and executes a client's SQL with an allocator that ends the process when memory is short, and plans by
recursion: ``repeat(text, 100000000)`` and a sum of 100,000 terms each end whatever process they run in. The rule is
a list of what is known to be cheap. Everything else counts as costly and runs in a process of its own, which costs a
few milliseconds: a mistake here makes a request slower, never the server weaker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# Lance's planner recurses once for each operator of a chain; this many characters cannot make it deep.
_LONGEST_CHEAP_SQL = 4096
# A vector search reserves memory for this many candidates before it looks at the table.
_MOST_CHEAP_CANDIDATES = 100_000
# What may stand before a parenthesis: words of SQL, and functions whose result is no larger than their input.
_CHEAP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        and or not in between like ilike is when then else
        abs acos asin atan atan2 ceil ceiling cos degrees exp floor ln log log10 log2 mod pow power radians round sign
        sin sqrt tan trunc
        bit_length btrim char_length character_length contains ends_with length lower ltrim octet_length rtrim
        starts_with strpos substr substring trim upper
        coalesce ifnull isnan iszero nullif nvl
        date_part date_trunc day extract month now to_date to_timestamp year
        array_contains array_has array_has_all array_has_any array_length cardinality list_contains
        cast char decimal numeric timestamp try_cast varchar
        """,
    )
)
_BEFORE_PARENTHESIS = re.compile(r"(\w*)\s*\(")
_OPERATORS = frozenset("=<>+-*/%,(")
# Concatenation grows text. Comments could hide what stands before a parenthesis.
_COSTLY_SIGNS = ("||", "--", "/*")


def is_cheap_sql(text: str) -> bool:
    """Whether an SQL expression can neither grow what it reads nor nest deeply. Quoted text is judged as if it were
    code, so no way of quoting can hide a call."""
    if len(text) > _LONGEST_CHEAP_SQL or any(sign in text for sign in _COSTLY_SIGNS):
        return False
    for found in _BEFORE_PARENTHESIS.finditer(text):
        word = found[1]
        if word:
            if word.lower() not in _CHEAP_WORDS or text[: found.start()].endswith((".", '"', "`", "'")):
                return False
        else:
            before = text[: found.start()].rstrip()
            if before and before[-1] not in _OPERATORS:
                return False
    return True


def is_costly(operation: str, request: Any) -> bool:
    """Whether a request must run in a process of its own."""
    return any(not is_cheap_sql(text) for text in _sql_texts(operation, request)) or _candidates(request) > (
        _MOST_CHEAP_CANDIDATES
    )


def _sql_texts(operation: str, request: Any) -> Iterator[str]:
    """The SQL that an operation has Lance execute. What is only planned is checked where it is planned."""
    names = _SQL_FIELDS.get(operation, ())
    for part in (request, getattr(request, "query", None)):
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, str):
                yield value
        if "columns" in names:
            aliases = getattr(getattr(part, "columns", None), "column_aliases", None)
            yield from _texts(aliases.values() if isinstance(aliases, Mapping) else ())
    if operation == "update_table":
        yield from _texts(expression for _, expression in request.updates)
    elif operation == "alter_table_add_columns":
        yield from _texts(entry.expression for entry in request.new_columns)


_SQL_FIELDS: dict[str, tuple[str, ...]] = {
    "query_table": ("filter", "columns"),
    "explain_table_query_plan": ("filter", "columns"),
    "analyze_table_query_plan": ("filter", "columns"),
    "count_table_rows": ("predicate",),
    "update_table": ("predicate",),
    "delete_from_table": ("predicate",),
    "merge_insert_into_table": ("when_matched_update_all_filt", "when_not_matched_by_source_delete_filt"),
}


def _texts(values: Iterable[Any]) -> Iterator[str]:
    return (value for value in values if isinstance(value, str))


def _candidates(request: Any) -> int:
    """How many rows a vector search compares at once: what it returns, times what it looks at again."""
    found = 0
    for part in (request, getattr(request, "query", None)):
        vector = getattr(part, "vector", None)
        if part is not None and (getattr(vector, "single_vector", None) or getattr(vector, "multi_vector", None)):
            found = max(found, (part.k or 0) * max(part.refine_factor or 1, 1), part.ef or 0)
    return found

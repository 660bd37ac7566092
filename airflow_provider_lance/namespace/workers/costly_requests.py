"""Which requests may take any amount of memory or stack, and so must not run in the server's own process.

Lance plans and executes a client's SQL with an allocator that ends the process when memory is short, and plans by
recursion: ``repeat(text, 100000000)`` and a sum of 100,000 terms each end the process they run in. This module lists
what is known to be cheap. Everything else counts as costly and runs in a worker process, which costs a few
milliseconds, so that a gap in the list makes a request slower and never endangers the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel

    from airflow_provider_lance.api.operations import Operation

# Lance's planner recurses once for each operator of a chain, which a text of this length cannot make too deep.
_LONGEST_CHEAP_SQL = 4096
# A vector search reserves memory for its candidates before it reads the table.
_MOST_CHEAP_CANDIDATES = 100_000
# The words of SQL and the functions that may precede a parenthesis. No function here has a result that is larger than
# its input.
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
# Concatenation makes text longer, and a comment could hide the word before a parenthesis.
_COSTLY_SIGNS = ("||", "--", "/*")


def is_cheap_sql(text: str) -> bool:
    """Whether an SQL expression can neither multiply the data it reads nor nest deeply.

    Quoted text is judged as if it were code, so that no way of quoting can hide a call.
    """
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


def is_costly(operation: Operation, request: BaseModel) -> bool:
    """Whether a request must run in a worker process."""
    # Some requests wrap their query, and others have its fields themselves.
    parts = [part for part in (request, getattr(request, "query", None)) if part is not None]
    texts = (text for part in parts for name in operation.sql_fields for text in _sql(getattr(part, name, None)))
    return any(not is_cheap_sql(text) for text in texts) or max(map(_candidates, parts)) > _MOST_CHEAP_CANDIDATES


def _sql(value: object) -> Iterator[str]:
    """The SQL in a field: a text, ``[[column, expression], …]``, entries with an ``expression``, or column aliases."""
    if isinstance(value, list):
        found = [item[1] if isinstance(item, list | tuple) else getattr(item, "expression", None) for item in value]
    else:
        found = [value, *(getattr(value, "column_aliases", None) or {}).values()]
    yield from (text for text in found if isinstance(text, str))


def _candidates(part: object) -> int:
    """How many rows a vector search compares at once: those it returns or skips, times its factor for refinement."""
    vector = getattr(part, "vector", None)
    if not (getattr(vector, "single_vector", None) or getattr(vector, "multi_vector", None)):
        return 0
    names = ("k", "offset", "refine_factor", "ef")
    rows, skipped, factor, explored = (int(getattr(part, name, None) or 0) for name in names)
    return max((rows + skipped) * max(factor, 1), explored)

"""A full-text query of the wire as one of pylance's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

if TYPE_CHECKING:
    from lance.query import FullTextOperator, FullTextQuery
    from lance_namespace_urllib3_client.models.fts_query import FtsQuery
    from lance_namespace_urllib3_client.models.match_query import MatchQuery
    from lance_namespace_urllib3_client.models.multi_match_query import MultiMatchQuery

_DEEPEST = 20


def full_text_query(query: FtsQuery, indexed: list[str], depth: int = 0) -> FullTextQuery:
    """The query that one field of ``query`` holds; a part that names no column searches the ``indexed`` columns."""
    from lance import query as lance_query

    given = [name for name, value in query if value is not None]
    if len(given) != 1 or depth > _DEEPEST:
        raise InvalidInputError(
            "A full-text query is exactly one of match, phrase, boost, multi_match and boolean, nested at most "
            f"{_DEEPEST} deep."
        )
    if query.match is not None:
        return _match_in(_columns(query.match.column, indexed), query.match)
    if query.phrase is not None:
        terms, slop = query.phrase.terms, query.phrase.slop or 0
        columns = _columns(query.phrase.column, indexed)
        return _anywhere([lance_query.PhraseQuery(terms, column, slop=slop) for column in columns])
    if query.multi_match is not None:
        return _multi_match(query.multi_match)
    if query.boost is not None:
        return lance_query.BoostQuery(
            full_text_query(query.boost.positive, indexed, depth + 1),
            full_text_query(query.boost.negative, indexed, depth + 1),
            negative_boost=0.5 if query.boost.negative_boost is None else float(query.boost.negative_boost),
        )
    assert query.boolean is not None
    clauses = (
        (lance_query.Occur.MUST, query.boolean.must),
        (lance_query.Occur.SHOULD, query.boolean.should),
        (lance_query.Occur.MUST_NOT, query.boolean.must_not),
    )
    return lance_query.BooleanQuery(
        [(occur, full_text_query(part, indexed, depth + 1)) for occur, parts in clauses for part in parts]
    )


def _anywhere(queries: Sequence[FullTextQuery]) -> FullTextQuery:
    """The one query, or what any of several finds."""
    from lance.query import BooleanQuery, Occur

    return queries[0] if len(queries) == 1 else BooleanQuery([(Occur.SHOULD, query) for query in queries])


def _match_in(columns: list[str], match: MatchQuery) -> FullTextQuery:
    """Search several columns. As in LanceDB the best one decides a row's score, if the words must match exactly."""
    from lance.query import MultiMatchQuery

    exact = match.fuzziness in {None, 0} and not match.prefix_length
    if len(columns) == 1 or not exact:
        return _anywhere([_match(match, column) for column in columns])
    boosts = [1.0 if match.boost is None else float(match.boost)] * len(columns)
    return MultiMatchQuery(match.terms, columns, boosts=boosts, operator=_operator(match.operator))


def _match(match: MatchQuery, column: str) -> FullTextQuery:
    from lance.query import MatchQuery

    # A fuzziness of null lets Lance choose by the length of each word. Without the field, words match exactly.
    automatic = match.fuzziness is None and "fuzziness" in match.model_fields_set
    return MatchQuery(
        match.terms,
        column,
        boost=1.0 if match.boost is None else float(match.boost),
        fuzziness=None if automatic else match.fuzziness or 0,  # type: ignore[arg-type]
        max_expansions=50 if match.max_expansions is None else match.max_expansions,
        operator=_operator(match.operator),
        prefix_length=match.prefix_length or 0,
    )


def _multi_match(multi: MultiMatchQuery) -> FullTextQuery:
    """One text in several columns. pylance takes nothing else under this name."""
    from lance.query import MultiMatchQuery

    queries = multi.match_queries
    columns = [query.column for query in queries if query.column]
    if not columns or len(columns) < len(queries):
        raise InvalidInputError("Each query of a multi_match must name its column.")
    words = {(query.terms, _operator(query.operator)) for query in queries}
    if len(words) > 1 or any(query.fuzziness or query.prefix_length for query in queries):
        raise UnsupportedOperationError(
            "multi_match searches one text in several columns, with one operator and without fuzziness. Write "
            "anything else as a boolean query with `should`."
        )
    ((terms, operator),) = words
    boosts = [1.0 if query.boost is None else float(query.boost) for query in queries]
    return MultiMatchQuery(terms, columns, boosts=boosts, operator=operator)


def _operator(word: str | None) -> FullTextOperator:
    from lance.query import FullTextOperator

    return FullTextOperator.AND if (word or "").lower() == "and" else FullTextOperator.OR


def _columns(column: str | None, indexed: list[str]) -> list[str]:
    columns = [column] if column else indexed
    if not columns:
        raise InvalidInputError("The table has no full-text index. Create one, or name the column to search.")
    return columns

"""A table whose scalar index answers with values that were replaced since, for tests of what must not trust an index.

Lance leaves the old entries of a replaced fragment in the old segment of an index; once another segment covers that
fragment, they count again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import lance
import pyarrow as pa

from tests.columns_in_place import replace_column

IndexType = Literal["BTREE", "BITMAP", "INVERTED"]
INDEX_TYPES: tuple[IndexType, ...] = ("BTREE", "BITMAP", "INVERTED")
OLD, NEW = "old", "new"
ROWS = 300
ROWS_PER_FRAGMENT = 100
# Lance asks an inverted index about contains_tokens() only where the index keeps every token as it is.
_WHOLE_TOKENS: dict[str, Any] = {
    "base_tokenizer": "simple",
    "stem": False,
    "remove_stop_words": False,
    "max_token_length": None,
}
# The column ``word`` was "old" everywhere and is "new" in the first fragment now.
RENEWED = range(ROWS_PER_FRAGMENT)
KEPT = range(ROWS_PER_FRAGMENT, ROWS)


def condition(index_type: IndexType, word: str) -> str:
    """The filter ``word = word`` in the words that an index of ``index_type`` answers."""
    return f"contains_tokens(word, '{word}')" if index_type == "INVERTED" else f"word = '{word}'"


def stale_table(path: Path | str, index_type: IndexType) -> lance.LanceDataset:
    """Columns ``id``, ``word``, ``filled`` (null) with an index on ``word`` that still finds what was replaced."""
    data = pa.table({"id": range(ROWS), "word": [OLD] * ROWS, "filled": pa.nulls(ROWS, pa.string())})
    dataset = lance.write_dataset(data, path, max_rows_per_file=ROWS_PER_FRAGMENT, enable_stable_row_ids=True)
    dataset.create_scalar_index("word", index_type, **(_WHOLE_TOKENS if index_type == "INVERTED" else {}))
    first = dataset.get_fragments()[0]
    dataset = replace_column(dataset, "word", {first: pa.array([NEW] * ROWS_PER_FRAGMENT)})
    dataset.optimize.optimize_indices(num_indices_to_merge=0)
    dataset = lance.dataset(path)
    indexed = dataset.count_rows(condition(index_type, OLD))
    assert indexed == ROWS, f"the index is not stale: it finds {indexed} rows, and {len(KEPT)} have the value"
    return dataset

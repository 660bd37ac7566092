"""LanceDB's client gets the same answers from our server as from LanceDB itself in process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lance
import lancedb
import lancedb.index
import lancedb.query
import pyarrow as pa
import pytest

from tests.interop.conftest import Address

#: The annotations of these two modules are narrower than what their classes take.
QUERY: Any = lancedb.query
INDEX: Any = lancedb.index

WORDS = ("amber", "birch", "cedar", "damson", "elder")
ROWS = pa.table(
    {
        "id": range(100),
        "text": [f"w{n} {WORDS[n % 5]} tree {WORDS[n % 3]}" for n in range(100)],
        "title": [f"title {WORDS[n % 4]}" for n in range(100)],
        "v": pa.array([[float(n * 37 % 100), 0.0] for n in range(100)], pa.list_(pa.float32(), 2)),
    }
)

Both = tuple[Any, Any]


@pytest.fixture(scope="module")
def database(server: Address) -> Any:
    return lancedb.connect("db://dev", api_key=server.key, host_override=server.url)


@pytest.fixture(scope="module")
def tables(database: Any, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """The same table with the same full-text indices on our server and in process."""
    embedded = lancedb.connect(tmp_path_factory.mktemp("embedded"))
    both = (database.create_table("texts", ROWS), embedded.create_table("texts", ROWS))
    for table in both:
        table.create_index("text", config=INDEX.FTS(with_position=True, stem=False))
        table.create_index("title", config=INDEX.FTS(with_position=True, stem=False))
    return both


def near(table: Any, vector: Any) -> Any:
    return table.search(vector, vector_column_name="v")


QUERIES: dict[str, Callable[[Any], Any]] = {
    "vectors with an offset": lambda t: near(t, [1.0, 0.0]).limit(3).offset(2),
    "vectors of another metric": lambda t: near(t, [1.0, 0.0]).distance_type("dot").limit(5).offset(1),
    "vectors with a filter before": lambda t: near(t, [1.0, 0.0]).where("id > 50").limit(2).offset(1),
    "vectors with a filter after": lambda t: near(t, [1.0, 0.0]).where("id > 50", prefilter=False).limit(20).offset(1),
    "vectors in a range": lambda t: near(t, [1.0, 0.0]).distance_range(4.0, 30.0).limit(5),
    "several vectors": lambda t: near(t, [[1.0, 0.0], [50.0, 0.0]]).limit(3),
    "several vectors with an offset": lambda t: near(t, [[1.0, 0.0], [50.0, 0.0]]).limit(3).offset(1),
    "a scan with an offset": lambda t: t.search().limit(3).offset(2),
    "an order": lambda t: t.search().limit(3).offset(2).order_by([{"column_name": "id", "ascending": False}]),
    "text": lambda t: t.search("cedar", query_type="fts").limit(100),
    "fuzzy text": lambda t: t.search(QUERY.MatchQuery("cedat", "text", fuzziness=1)).limit(100),
    "all words": lambda t: t.search(QUERY.MatchQuery("cedar w2", "text", operator="AND")).limit(100),
    "one text in two columns": lambda t: t.search(
        QUERY.MultiMatchQuery("damson", ["text", "title"], boosts=[1.0, 3.0])
    ).limit(100),
    "a phrase": lambda t: t.search(QUERY.PhraseQuery("tree amber", "text")).limit(100),
    "a phrase with a gap": lambda t: t.search(QUERY.PhraseQuery("w3 tree", "text", slop=2)).limit(100),
    "a boost": lambda t: t.search(
        QUERY.BoostQuery(QUERY.MatchQuery("tree", "text"), QUERY.MatchQuery("amber", "text"), negative_boost=0.2)
    ).limit(100),
    "a boolean": lambda t: t.search(
        QUERY.BooleanQuery(
            [
                (QUERY.Occur.MUST, QUERY.MatchQuery("tree", "text")),
                (QUERY.Occur.MUST_NOT, QUERY.MultiMatchQuery("amber", ["text", "title"])),
            ]
        )
    ).limit(100),
    "hybrid": lambda t: t.search(query_type="hybrid", vector_column_name="v").vector([1.0, 0.0]).text("w5").limit(3),
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_query(tables: Both, query: Callable[[Any], Any]) -> None:
    ours, embedded = (query(table).to_arrow() for table in tables)
    assert embedded.num_rows > 0
    assert ours.schema.names == embedded.schema.names
    for found, wanted in zip(_ordered(ours), _ordered(embedded), strict=True):
        assert found == pytest.approx(wanted)


def _ordered(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows as they came; those of one query after those of the other, and texts of equal score by their ids."""
    numbers = {"query_index", "id", "_distance", "_score", "_relevance_score"}
    found = rows.select([name for name in rows.column_names if name in numbers]).to_pylist()
    if "_score" in rows.column_names:
        return sorted(found, key=lambda row: row["id"])
    return sorted(found, key=lambda row: row.get("query_index", 0))


VECTORS = pa.table(
    {
        "v": pa.array([[float((n * 37 + d) % 101) for d in range(8)] for n in range(600)], pa.list_(pa.float32(), 8)),
        "id": range(600),
        "text": ["den Tanz tanzen"] * 600,
    }
)


def test_each_kind_of_index_takes_its_parameters_and_replaces_the_one_before(database: Any, server: Address) -> None:
    table = database.create_table("vectors", VECTORS)
    configs = {
        "IVF_PQ": INDEX.IvfPq(num_sub_vectors=2, num_partitions=1, num_bits=4, sample_rate=64, max_iterations=7),
        "IVF_HNSW_SQ": INDEX.HnswSq(m=7, ef_construction=33, distance_type="cosine"),
        "IVF_RQ": INDEX.IvfRq(num_bits=1, distance_type="dot"),
        "IVF_FLAT": INDEX.IvfFlat(distance_type="cosine", target_partition_size=100),
    }
    details = {}
    for kind, config in configs.items():
        table.create_index("v", config=config)
        statistics = table.index_stats("v_idx")
        assert (statistics.index_type, statistics.distance_type) == (kind, config.distance_type)
        (index,) = lance.dataset(str(server.lake / "vectors.lance")).describe_indices()
        details[kind] = index.details
    assert details["IVF_PQ"]["compression"] == {"type": "pq", "num_bits": 4, "num_sub_vectors": 2}
    assert details["IVF_PQ"]["runtime_hints"]["lance.ivf.max_iters"] == "7"
    assert details["IVF_PQ"]["runtime_hints"]["lance.pq.sample_rate"] == "64"
    assert (details["IVF_HNSW_SQ"]["hnsw"]["max_connections"], details["IVF_HNSW_SQ"]["hnsw"]["construction_ef"]) == (
        7,
        33,
    )
    assert details["IVF_FLAT"]["target_partition_size"] == 100
    with pytest.raises(Exception, match="must be divisible by num_sub_vectors"):
        table.create_index("v", config=INDEX.IvfPq(num_sub_vectors=3))
    with pytest.raises(Exception, match="is on v"):
        table.create_index("id", config=INDEX.BTree(), name="v_idx")
    assert table.index_stats("v_idx").index_type == "IVF_FLAT", "a refused index replaces nothing"


def test_a_full_text_index_takes_its_parameters(database: Any, server: Address) -> None:
    table = database.create_table("german", VECTORS)
    config = INDEX.FTS(language="German", with_position=True, ngram_min_length=2, ngram_max_length=4, prefix_only=True)
    table.create_index("text", config=config)
    (index,) = lance.dataset(str(server.lake / "german.lance")).describe_indices()
    wanted = {"language": "German", "with_position": True, "min_ngram_length": 2, "max_ngram_length": 4}
    assert {**wanted, "prefix_only": True}.items() <= index.details.items()
    with pytest.raises(Exception, match="is string"):
        table.create_index("text", config=INDEX.IvfFlat())
    with pytest.raises(Exception, match="BTREE index cannot be built on 'v'"):
        table.create_index("v", config=INDEX.BTree())


def test_columns_without_values_and_of_another_type(database: Any) -> None:
    table = database.create_table("columns", ROWS)
    table.add_columns(pa.field("empty", pa.float64()))
    table.add_columns(pa.schema([pa.field("a", pa.string()), pa.field("b", pa.list_(pa.int32()))]))
    table.alter_columns({"path": "id", "data_type": pa.int32()}, {"path": "title", "rename": "heading"})
    assert table.schema.field("id").type == pa.int32()
    assert table.schema.names == ["id", "text", "heading", "v", "empty", "a", "b"]
    assert table.count_rows("empty is null and a is null and b is null") == 100
    branch = table.branches.create("wide")
    branch.add_columns(pa.field("c", pa.int64()))
    branch.alter_columns({"path": "id", "data_type": pa.int64()})
    assert (branch.schema.field("id").type, table.schema.field("id").type) == (pa.int64(), pa.int32())
    assert "c" not in table.schema.names
    with pytest.raises(Exception, match="column 'empty' already"):
        table.add_columns(pa.field("empty", pa.int64()))
    with pytest.raises(Exception, match="must be nullable"):
        table.add_columns(pa.field("full", pa.int64(), nullable=False))
    with pytest.raises(Exception, match="400"):
        table.alter_columns({"path": "text", "data_type": pa.list_(pa.int32())})


def test_caches_are_warmed_and_what_is_not_here_says_so(database: Any) -> None:
    table = database.create_table("warm", ROWS)
    table.create_index("id", config=INDEX.BTree())
    table.prewarm_index("id_idx")
    table.prewarm_data(["id"])
    with pytest.raises(Exception, match="Index 'none' was not found"):
        table.prewarm_index("none")
    with pytest.raises(Exception, match="no column 'none'"):
        table.prewarm_data(["none"])
    table.branches.create("other")
    for call, sentence in (
        (lambda: table.branches.diff("other"), "neither compared nor picked"),
        (table.get_lsm_stats, "no LSM writers"),
        (lambda: database.create_view("v", "SELECT 1"), "Flight SQL"),
        (database.list_views, "Flight SQL"),
    ):
        with pytest.raises(Exception, match=sentence) as refused:
            call()
        assert "406" in str(refused.value)


def test_a_branch_has_its_own_rows_and_indices(database: Any) -> None:
    table = database.create_table("branched", ROWS)
    branch = table.branches.create("trial")
    branch.delete("id < 90")
    assert near(branch, [1.0, 0.0]).limit(2).to_arrow()["id"].to_pylist() == [92, 95]
    assert near(table, [1.0, 0.0]).limit(1).to_arrow()["id"].to_pylist() == [73]
    assert branch.search().where("id > 97").to_arrow()["id"].to_pylist() == [98, 99]
    branch.create_index("text", config=INDEX.FTS())
    branch.create_index("id", config=INDEX.BTree())
    assert sorted(index.name for index in branch.list_indices()) == ["id_idx", "text_idx"]
    assert branch.index_stats("id_idx").num_indexed_rows == 10
    assert branch.search("w95", query_type="fts").to_arrow()["id"].to_pylist() == [95]
    assert "LanceRead" in branch.search().limit(1).explain_plan()
    assert "elapsed" in near(branch, [1.0, 0.0]).limit(1).analyze_plan()
    branch.drop_index("id_idx")
    assert [index.name for index in branch.list_indices()] == ["text_idx"]
    assert table.list_indices() == []

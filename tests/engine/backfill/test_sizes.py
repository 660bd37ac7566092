"""How many rows a checkpoint and a call of a function have, and how checkpoints of several attempts are joined."""

from __future__ import annotations

from airflow_provider_lance.engine.backfill.records.checkpoint import Checkpoint, missing_ranges, without_overlaps
from airflow_provider_lance.engine.backfill.row_batches import BatchSizer
from airflow_provider_lance.engine.backfill.task import FlushPolicy


def test_checkpoint_sizes_adapt_between_their_bounds() -> None:
    fixed = FlushPolicy(seconds=10, size=100)
    assert fixed.next_size(100, 0.1) == 100
    adaptive = FlushPolicy(seconds=10, size=100, low=50, high=1000)
    assert adaptive.next_size(100, 5.0) == 200
    assert adaptive.next_size(100, 0.001) == 1000
    assert adaptive.next_size(100, 1000.0) == 50
    assert (adaptive.first_size, adaptive.smallest) == (100, 50)


def test_a_slow_function_gets_few_rows_and_a_fast_one_many() -> None:
    sizer = BatchSizer()
    for _ in range(10):
        sizer.learn(sizer.rows, 0.001)
    assert sizer.rows == 8192
    for _ in range(20):
        sizer.learn(sizer.rows, 30.0)
    assert sizer.rows == 1
    assert BatchSizer(limit=10).rows == 10


def test_checkpoints_of_different_attempts_are_joined_without_overlaps() -> None:
    ranges = [(0, 10), (0, 20), (15, 30), (20, 25), (40, 50)]
    chosen = without_overlaps([Checkpoint("k" * 32, 0, 1, start, stop, "") for start, stop in ranges])
    assert [(one.start, one.stop) for one in chosen] == [(0, 20), (20, 25), (40, 50)]
    assert missing_ranges(0, 60, chosen) == [(25, 40), (50, 60)]
    assert missing_ranges(22, 45, chosen) == [(25, 40)]

"""Lance's errors as a person reads them: the reason, without places in Rust's source code."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.definitions.lance_errors import plain_reason


def test_a_real_error_keeps_its_reason_and_loses_its_place(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "t.lance"))
    with pytest.raises(ValueError, match=r"Invalid user input: .*\.rs:\d+") as caught:
        dataset.scanner(columns={"x": "nope + 1"}).to_table()
    reason = plain_reason(str(caught.value))
    assert reason.startswith("Schema error: No field named nope.")
    assert ".rs" not in reason


def test_every_place_of_an_error_that_was_passed_on_goes(tmp_path: Path) -> None:
    missing = tmp_path / "missing.lance"
    with pytest.raises(ValueError, match=r"\.rs:\d+:\d+, .*\.rs:\d+:\d+") as caught:
        lance.dataset(str(missing))
    assert plain_reason(str(caught.value)).endswith("missing.lance/_versions")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Namespace error: Internal error: it broke", "it broke"),
        ("Encountered internal error. Please file a bug report. it broke, /a/b.rs:1:2", "it broke"),
        ("it broke, location: Location { file: x.rs, line: 1 }, backtrace: Disabled", "it broke"),
        ("the column a/b.rs is empty", "the column a/b.rs is empty"),
        ("", ""),
    ],
)
def test_plain_reason(text: str, reason: str) -> None:
    assert plain_reason(text) == reason

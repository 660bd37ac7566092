"""Take rows out of a view: those that came from given source rows, and those past a limit. Commits nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.scan_tasks import Target
from airflow_provider_lance.engine.view_definition import SOURCE_ROW_ID

if TYPE_CHECKING:
    import lance
    import numpy as np
    from lance.fragment import FragmentMetadata

_READERS = 4
_LARGEST_TABLE = 1 << 28  # 256 MB of flags


def delete_source_rows(view: lance.LanceDataset, gone: np.ndarray) -> tuple[list[FragmentMetadata], list[int], int]:
    """Fragments with the rows of ``gone`` deleted, ids of fragments left without rows, and how many rows went.

    Writes deletion files and commits nothing. Costs a scan of one integer column: 12 ms per million rows.
    """
    if not len(gone):
        return [], [], 0
    is_gone = _membership(gone)

    def one(fragment: lance.LanceFragment) -> tuple[FragmentMetadata | None, int | None, int]:
        rows = fragment.scanner(columns=[SOURCE_ROW_ID], with_row_address=True).to_table()
        hit = rows["_rowaddr"].to_numpy()[is_gone(rows[SOURCE_ROW_ID].to_numpy())]
        if not len(hit):
            return None, None, 0
        kept = fragment.delete_rows((hit & 0xFFFFFFFF).tolist())
        return kept, fragment.fragment_id if kept is None else None, len(hit)

    with ThreadPoolExecutor(max_workers=_READERS) as pool:
        results = list(pool.map(one, view.get_fragments()))
    updated = [kept for kept, _, _ in results if kept is not None]
    removed = [number for _, number, _ in results if number is not None]
    return updated, removed, sum(count for _, _, count in results)


def _membership(gone: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """A test for row ids. Lance hands them out one after the other, so a table of flags is small and beats hashing."""
    import numpy as np

    largest = int(gone.max())
    if largest >= _LARGEST_TABLE:
        return lambda ids: np.isin(ids, gone)
    flags = np.zeros(largest + 2, dtype=bool)
    flags[gone] = True
    return lambda ids: flags[np.minimum(ids, largest + 1)]


def cut_fragments(fragments: list[FragmentMetadata], rows: int, target: Target) -> list[FragmentMetadata]:
    """The first ``rows`` rows of fragments that are written but not committed; one of them is written anew."""
    from lance.file import LanceFileReader
    from lance.fragment import write_fragments

    kept: list[FragmentMetadata] = []
    for fragment in fragments:
        if rows <= 0:
            break
        if fragment.physical_rows <= rows:
            kept.append(fragment)
        else:
            (file,) = fragment.files
            options = target.view.storage_options or None
            reader = LanceFileReader(target.view.data_path(file.path), storage_options=options)
            head = reader.read_range(0, rows).to_table().cast(target.schema)
            kept += write_fragments(
                head,
                target.view.location,
                schema=target.schema,
                data_storage_version=target.storage_version,
                enable_stable_row_ids=True,
                storage_options=options,
            )
        rows -= fragment.physical_rows
    return kept

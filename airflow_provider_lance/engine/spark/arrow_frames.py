"""Arrow tables of the driver as DataFrames, for few rows: no Python worker and no data source is needed for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def arrow_frame(session: SparkSession, table: pa.Table, types: StructType) -> DataFrame:
    """A DataFrame of the rows of ``table``, with the column names and types of ``types``."""
    from pyspark.sql import SparkSession

    active = SparkSession._activeSession
    try:
        return session.createDataFrame(table.rename_columns(types.names), types)
    finally:
        # createDataFrame makes its session the active one of the whole process, and other jobs may run there.
        SparkSession._activeSession = active
        if active is not None and session._jvm is not None:
            SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(active._jsparkSession)

"""What you import to write Python functions for columns and views.

A DAG needs :class:`UdfColumn` for a column and :func:`table_function_spec` for a view; :func:`udf` marks how a function
is called. The other names are for programs that declare columns and views through the client. These names stay, while
the modules that define them may change. Importing this module imports neither Arrow nor Lance.
"""

from __future__ import annotations

from airflow_provider_lance.definitions.arrow_types import encode_schema
from airflow_provider_lance.definitions.column_rules import virtual_column_entry
from airflow_provider_lance.definitions.functions.envelope import udf, wrap
from airflow_provider_lance.definitions.functions.failure_policy import Fail, Retry, Skip, UdfError
from airflow_provider_lance.definitions.functions.signature import row_schema
from airflow_provider_lance.definitions.functions.table_function import wrap_table_function
from airflow_provider_lance.functions.column import UdfColumn
from airflow_provider_lance.functions.view import table_function_spec

__all__ = [
    "Fail",
    "Retry",
    "Skip",
    "UdfColumn",
    "UdfError",
    "encode_schema",
    "row_schema",
    "table_function_spec",
    "udf",
    "virtual_column_entry",
    "wrap",
    "wrap_table_function",
]

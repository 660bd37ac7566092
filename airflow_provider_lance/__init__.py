"""Run Lance from Airflow: namespace operations, column backfills and materialized views on Spark."""

from __future__ import annotations

__version__ = "0.1.0"

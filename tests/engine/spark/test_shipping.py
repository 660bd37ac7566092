"""What executors get of this package: all that a Python worker imports."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from airflow_provider_lance.engine.spark import session


class Files:
    """Stands in for a SparkContext, which only keeps the archive's path."""

    def __init__(self) -> None:
        self.archive = ""

    def addPyFile(self, path: str) -> None:
        self.archive = path


def test_the_modules_of_a_worker_can_be_imported_from_the_archive_alone(tmp_path: Path) -> None:
    context: Any = Files()
    session.ship_package(context)
    with zipfile.ZipFile(context.archive) as archive:
        names = archive.namelist()
    assert "airflow_provider_lance/definitions/sql/text.py" in names
    modules = [
        "engine.backfill.evaluate",
        "engine.backfill.task",
        "engine.views.chunker_view",
        "engine.views.spark_source",
        "engine.views.scan_tasks",
        "engine.views.table_function_view",
        "definitions.sql.lance_sql",
        "definitions.sql.spark_sql",
    ]
    code = f"""
import importlib, sys
sys.path.insert(0, {context.archive!r})
for name in {modules!r}:
    module = importlib.import_module("airflow_provider_lance." + name)
    assert module.__file__.startswith({context.archive!r}), module.__file__
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)

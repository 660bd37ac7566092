"""What parsing a DAG loads: nothing heavy beyond Airflow itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("lance", "pyspark", "pyarrow", "pandas", "numpy", "lance_namespace", "fastapi", "sqlglot")
PROGRAM = """
import importlib, pkgutil, sys
import airflow.sdk
{first}
before = set(sys.modules)
{then}
heavy = [name for name in {heavy!r} if name in set(sys.modules) - before]
print("heavy:", *heavy)
"""


def loaded(first: str, then: str, home: Path) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first, then=then, heavy=HEAVY)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"AIRFLOW_HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
    )
    return answer.stdout.split("heavy:")[1].strip()  # Airflow may log before it


def test_no_module_of_the_airflow_layer_loads_anything_heavy(tmp_path: Path) -> None:
    modules = """
for folder in ("hooks", "operators", "sensors", "triggers", "assets", "links", "decorators", "task_groups"):
    package = importlib.import_module(f"airflow_provider_lance.{folder}")
    for found in pkgutil.iter_modules(package.__path__):
        if not found.name.startswith("spark"):  # see below
            importlib.import_module(f"airflow_provider_lance.{folder}.{found.name}")
import airflow_provider_lance.get_provider_info
"""
    assert loaded("", modules, tmp_path) == ""


def test_the_spark_operator_loads_nothing_beyond_sparks_own(tmp_path: Path) -> None:
    first = "from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator"
    assert loaded(first, "import airflow_provider_lance.operators.spark", tmp_path) == ""


@pytest.mark.parametrize("path", sorted((ROOT / "dags").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_dag_loads_nothing_heavy(path: Path, tmp_path: Path) -> None:
    first = (
        "from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator"
        if "operators.spark" in path.read_text()
        else ""
    )
    assert loaded(first, f"import runpy; runpy.run_path({str(path)!r})", tmp_path) == ""

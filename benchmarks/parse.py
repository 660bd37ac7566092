"""What parsing costs: importing our modules and the example DAGs, over importing Airflow and over a plain DAG.

Each figure is the median of fresh interpreters, in milliseconds of CPU, so that a busy machine counts less. Airflow
loads some of its own parts when the first DAG needs them (schedules, parameters, decorated tasks): that is its cost,
so the limit is on what comes on top of a DAG without a provider. What both cost together is printed beside it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT_MS = 50.0
RUNS = int(os.environ.get("RUNS", "5"))
SPARK = "from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator"
MODULES = """
import airflow_provider_lance.operators.backfill, airflow_provider_lance.operators.materialized_view
import airflow_provider_lance.operators.table, airflow_provider_lance.operators.tag
import airflow_provider_lance.operators.check, airflow_provider_lance.operators.operation
import airflow_provider_lance.operators.job, airflow_provider_lance.sensors.job
import airflow_provider_lance.sensors.table, airflow_provider_lance.triggers.table
import airflow_provider_lance.assets.lance, airflow_provider_lance.decorators.lance
"""
# What any DAG with an operator, a sensor and a Python task pays before it names a provider.
BASE = """
import airflow.sdk
from airflow.providers.common.compat.sdk import BaseOperator, BaseSensorOperator, conf
import airflow.triggers.base, airflow.providers.standard.operators.python
"""
# A DAG with a schedule, a parameter and a decorated task: Airflow loads these parts when they are first used.
PLAIN = """
from airflow.sdk import Param, dag, task
@dag(schedule="@daily", params={"rows": Param(1, type="integer", minimum=1)})
def plain():
    @task
    def nothing():
        return None
    nothing()
plain()
"""
PROGRAM = """
import time
t0 = time.process_time()
{base}
t1 = time.process_time()
{then}
t2 = time.process_time()
print((t1 - t0) * 1000, (t2 - t1) * 1000)
"""


def measure(base: str, then: str, home: str) -> tuple[float, float]:
    """Median milliseconds of the base and of what comes on top."""
    # An installed package has its bytecode on disk: the first round writes ours, whatever this shell says of it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    pairs = []
    for _ in range(RUNS + 1):
        answer = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(base=base, then=then)],
            capture_output=True,
            text=True,
            check=True,
            env={**environment, "AIRFLOW_HOME": home, "PYTHONPATH": str(ROOT)},
        )
        first, second = answer.stdout.split()[-2:]
        pairs.append((float(first), float(second)))
    before, ours = zip(*pairs[1:], strict=True)
    return statistics.median(before), statistics.median(ours)


def main() -> int:
    worst = 0.0
    with tempfile.TemporaryDirectory() as home:
        _, plain = measure(BASE, PLAIN, home)
        print(f"A DAG without a provider costs {plain:.0f} ms over importing Airflow.")
        print(f"{'':46}{'Airflow ms':>12}{'on top ms':>11}{'of it ours':>12}{'ratio':>8}")
        rows = [
            ("all operators, sensors, triggers", BASE, "", MODULES),
            ("operators/spark.py", BASE + SPARK, "", "import airflow_provider_lance.operators.spark"),
        ]
        for path in sorted((ROOT / "dags").glob("*.py")):
            base = BASE + (SPARK if "operators.spark" in path.read_text() else "")
            rows.append((f"dags/{path.name}", base, PLAIN, f"import runpy; runpy.run_path({str(path)!r})"))
        for name, base, lazily, then in rows:
            before, ours = measure(base + lazily, then, home)
            imports, whole = measure(base, then, home) if lazily else (before, ours)
            worst = max(worst, ours)
            print(f"{name:46}{imports:12.0f}{whole:11.1f}{ours:12.1f}{(before + ours) / before:8.3f}")
    print(f"most of ours: {worst:.1f} ms (limit {LIMIT_MS:.0f} ms)")
    return 0 if worst <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())

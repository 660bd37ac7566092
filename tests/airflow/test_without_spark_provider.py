"""Without Airflow's Spark provider everything but ``LanceSparkSubmitOperator`` works, and that says what to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SENTENCE = "LanceSparkSubmitOperator needs Airflow's Spark provider"
COMMAND = "pip install 'airflow-provider-lance[spark-submit]'"
PROGRAM = """
import importlib, json, logging, pkgutil, sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name == "airflow.providers.apache" or name.startswith("airflow.providers.apache."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def without_spark(distributions):
    return lambda **chosen: (each for each in distributions(**chosen) if "apache-spark" not in each.metadata["Name"])


sys.meta_path.insert(0, Blocked())
for metadata in ("importlib.metadata", "importlib_metadata"):  # Airflow finds its providers with one of them
    module = importlib.import_module(metadata)
    module.distributions = without_spark(module.distributions)
failed = {}
for folder in ("hooks", "operators", "sensors", "triggers", "assets", "links", "decorators", "tasks"):
    package = importlib.import_module(f"airflow_provider_lance.{folder}")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        try:
            importlib.import_module(module.name)
        except Exception as error:
            failed[module.name] = [type(error).__name__, str(error)]

from airflow.dag_processing.dagbag import DagBag
from airflow.providers_manager import ProvidersManager

warnings = []
class Warnings(logging.Handler):
    def emit(self, record):
        if "lance" in record.getMessage():
            warnings.append(record.getMessage())

handler = Warnings(logging.WARNING)
logging.getLogger().addHandler(handler)
logging.getLogger("airflow.providers_manager").addHandler(handler)
manager = ProvidersManager()
told = {
    "failed": failed,
    "hook": manager.hooks["lance"].hook_name,
    "links": [name for name in manager.extra_links_class_names if "lance" in name],
    "decorator": "lance" in dict(manager.taskflow_decorators),
    "warnings": list(warnings),
}
dags = DagBag(sys.argv[1])
print("told:", json.dumps({
    **told,
    "dags": {name: len(dag.tasks) for name, dag in dags.dags.items()},
    "import_errors": {path.rsplit("/", 1)[-1]: text for path, text in dags.import_errors.items()},
}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process finds in which nothing of ``airflow.providers.apache`` can be imported."""
    home = tmp_path_factory.mktemp("home")
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT / "dags")],
        capture_output=True,
        text=True,
        check=False,
        cwd=home,
        env={
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
        },
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    found: dict[str, Any] = json.loads(answer.stdout.rpartition("told:")[2].splitlines()[0])
    return found


def test_every_other_module_can_be_imported(told: dict[str, Any]) -> None:
    modules = {name.removeprefix("airflow_provider_lance.") for name in told["failed"]}
    assert modules == {"hooks.spark", "hooks.spark_provider", "operators.spark"}


def test_the_operator_names_the_package_to_install(told: dict[str, Any]) -> None:
    for kind, message in told["failed"].values():
        assert kind == "AirflowOptionalProviderFeatureException"
        assert SENTENCE in message
        assert COMMAND in message


def test_airflow_knows_the_provider_without_a_warning(told: dict[str, Any]) -> None:
    assert told["warnings"] == []
    assert told["hook"] == "Lance Namespace"
    assert len(told["links"]) >= 2
    assert told["decorator"] is True


def test_every_other_example_is_parsed(told: dict[str, Any]) -> None:
    with_spark = {file.name for file in (ROOT / "dags").glob("*.py") if "operators.spark" in file.read_text()}
    assert set(told["import_errors"]) == with_spark == {"lance_spark_submit.py"}
    assert COMMAND in told["import_errors"]["lance_spark_submit.py"]
    files = {file.name for file in (ROOT / "dags").glob("lance_*.py")} - with_spark
    assert len(told["dags"]) >= len(files)
    assert min(told["dags"].values()) >= 1

"""The package as users get it: built, installed into an empty environment, and the README followed to the letter."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.soak, pytest.mark.timeout(3000)]


def run(command: list[object], cwd: Path, **environment: str) -> str:
    # A test must not hand its own interpreter or settings to what a user would run in a clean shell.
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "PYTEST", "VIRTUAL_ENV", "PYTHON"))
    }
    answer = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, f"{command}:\n{answer.stdout[-3000:]}\n{answer.stderr[-3000:]}"
    return answer.stdout


def test_the_wheel_registers_the_provider_in_an_empty_environment(tmp_path: Path) -> None:
    run([sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT], tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert list((tmp_path / "dist").glob("*.tar.gz"))
    names = zipfile.ZipFile(wheel).namelist()
    assert "airflow_provider_lance/py.typed" in names
    assert any(name.startswith("airflow_provider_lance/namespace/pages/") for name in names)
    assert not any(name.startswith(("tests/", "dags/", "benchmarks/")) for name in names)

    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run([python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel], tmp_path)
    home = str(tmp_path / "airflow")
    shown = run(
        [tmp_path / "venv" / "bin" / "airflow", "providers", "get", "airflow-provider-lance", "-o", "json"],
        tmp_path,
        AIRFLOW_HOME=home,
    )
    assert "airflow-provider-lance" in shown


def test_the_readme_works_as_written(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    clone = tmp_path / "clone"
    run(["git", "clone", "-q", ROOT, clone], tmp_path)
    assert "make demo" in readme
    told = run(["make", "demo", "ROWS=50000"], clone)
    assert "What happened" in told
    assert "make ui" in told

    dag = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert dag
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "nightly.py").write_text(dag[1])
    programs = clone / ".venv" / "bin"
    server = subprocess.Popen(
        [programs / "airflow-lance", "serve", "--root", clone / ".demo" / "tables", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[1]
        settings = {
            "AIRFLOW_HOME": str(clone / ".demo" / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW_CONN_LANCE_DEFAULT": json.dumps({"conn_type": "lance", "host": url}),
        }
        run([programs / "airflow", "dags", "test", "nightly_features"], tmp_path, **settings)
    finally:
        server.terminate()
        server.wait(30)
        time.sleep(1)

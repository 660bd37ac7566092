"""The package as users get it: built, installed into an empty environment, and the README followed to the letter."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from uv import find_uv_bin

import airflow_provider_lance

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_provider_lance"
pytestmark = pytest.mark.timeout(3000)


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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built with the tools of this environment; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, ROOT], folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel and without its dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    install = [find_uv_bin(), "pip", "install", "--quiet", "--offline", "--no-deps", "--python", sys.executable]
    run([*install, "--target", folder, wheel], folder)
    return folder


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    source = {str(file.relative_to(ROOT)) for file in PACKAGE.rglob("*") if file.is_file() and file.suffix != ".pyc"}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == source
    assert "airflow_provider_lance/py.typed" in names
    pages = [name for name in names if name.startswith("airflow_provider_lance/namespace/server/pages/")]
    assert {Path(name).suffix for name in pages} == {".py", ".html", ".css", ".js"}


def test_every_module_of_the_installed_wheel_can_be_imported(installed: Path, tmp_path: Path) -> None:
    program = """
import importlib, json, pkgutil
import airflow_provider_lance as package
names = [module.name for module in pkgutil.walk_packages(package.__path__, "airflow_provider_lance.")]
print(json.dumps([importlib.import_module(name).__file__ for name in names]))
"""
    told = run(
        [sys.executable, "-c", program], tmp_path, PYTHONPATH=str(installed), AIRFLOW_HOME=str(tmp_path / "home")
    )
    files = json.loads(told.splitlines()[-1])
    assert len(files) > 100
    assert [file for file in files if not Path(file).is_relative_to(installed)] == []


def test_the_installed_wheel_names_its_version_provider_and_command(installed: Path) -> None:
    (distribution,) = metadata.distributions(path=[str(installed)])
    assert distribution.version == airflow_provider_lance.__version__
    assert {(entry.group, entry.name, entry.value) for entry in distribution.entry_points} == {
        ("apache_airflow_provider", "provider_info", "airflow_provider_lance.get_provider_info:get_provider_info"),
        ("console_scripts", "airflow-lance", "airflow_provider_lance.cli.main:main"),
    }
    told = run([installed / "bin" / "airflow-lance", "--help"], installed, PYTHONPATH=str(installed))
    assert "serve" in told


def test_every_provider_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    optional = {"apache-spark": "spark-submit", "cncf-kubernetes": "kubernetes", "openlineage": "test"}
    imported = {
        match[1].replace(".", "-")
        for file in PACKAGE.rglob("*.py")
        for match in re.finditer(
            r"from airflow\.providers\.(apache\.spark|cncf\.kubernetes|common\.\w+|\w+)", file.read_text()
        )
    }
    assert {"common-compat", "standard", "apache-spark"} <= imported
    for provider in imported:
        declared = extras[optional[provider]] if provider in optional else project["dependencies"]
        assert any(re.match(rf"apache-airflow-providers-{provider}\b", line) for line in declared), provider


@pytest.mark.soak
def test_the_wheel_registers_the_provider_in_an_empty_environment(tmp_path: Path) -> None:
    run([sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT], tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (sources,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/conftest.py", "dags/lance_quickstart.py", "mkdocs.yml", "Makefile"} <= shipped

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


@pytest.mark.soak
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

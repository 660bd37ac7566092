"""The public face: documentation and examples import public modules only, and those are there and described."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_lance.api.operations import OPERATIONS
from airflow_provider_lance.get_provider_info import get_provider_info

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
#: Pages for users; the other pages describe how the package is built.
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name not in ("decisions", "reference")),
]
EXAMPLES = sorted((ROOT / "dags").glob("*.py"))
PUBLIC = set(re.findall(r"^\| `(airflow_provider_lance[\w.]*)` \|", (REFERENCE / "index.md").read_text(), re.MULTILINE))
DOTTED_NAME = re.compile(r"(?<!-m )\bairflow_provider_lance(?:\.\w+)+")


def test_every_public_module_exists_and_every_module_of_the_provider_is_public() -> None:
    missing = [name for name in PUBLIC if importlib.util.find_spec(name) is None]
    assert not missing
    info = get_provider_info()
    provided = {
        module
        for kind in ("hooks", "operators", "sensors", "triggers")
        for entry in info[kind]
        for module in entry["python-modules"]
    }
    assert provided <= PUBLIC


@pytest.mark.parametrize("file", [*PAGES, *EXAMPLES], ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_and_examples_name_public_modules_only(file: Path) -> None:
    named = set(DOTTED_NAME.findall(file.read_text())) | set(imported_modules(file))
    internal = [name for name in named if name not in PUBLIC and name.rpartition(".")[0] not in PUBLIC]
    assert not internal


def test_the_reference_describes_every_name_that_pages_and_examples_import() -> None:
    described = set(re.findall(r"^::: ([\w.]+)$", "".join(page.read_text() for page in REFERENCE.glob("*.md")), re.M))
    used = {
        f"{node.module}.{alias.name}"
        for file in [*PAGES, *EXAMPLES]
        for node in imports_of(file)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert len(used) > 20
    assert sorted(used - described) == []


def test_the_page_of_the_client_lists_every_operation() -> None:
    section = (ROOT / "docs" / "client.md").read_text().partition("## Operations")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"`(\w+)`", section)) == sorted(OPERATIONS)


def test_the_engine_prints_the_path_of_its_application() -> None:
    command = [sys.executable, "-m", "airflow_provider_lance.engine", "--application-path"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert Path(told.strip()).samefile(ROOT / "airflow_provider_lance" / "engine" / "app.py")


def imported_modules(file: Path) -> Iterator[str]:
    for node in imports_of(file):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        else:
            yield from (alias.name for alias in node.names)


def imports_of(file: Path) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports of this package in a DAG or in the code blocks of a page."""
    text = file.read_text()
    sources = [text] if file.suffix == ".py" else re.findall(r"```python\n(?!--8<--)(.*?)```", text, re.DOTALL)
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        if any(name.startswith("airflow_provider_lance") for name in names):
            yield node

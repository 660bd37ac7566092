"""What the pages say about the source: the tree, the import rules, the walk of a request, every file name."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_provider_lance"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
WALK_STEP = re.compile(r"^\d+\. \[`([\w.]+)`\]\(\.\./([\w/]+\.py)\) \w", re.MULTILINE)
SOURCES = sorted(
    path for folder in ("airflow_provider_lance", "scripts", "dags") for path in (ROOT / folder).rglob("*.py")
)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
IN_BACKTICKS = re.compile(r"`{1,2}([\w./-]+)`{1,2}")
#: Names in backticks that are files of a user, of Airflow or of Spark.
NOT_OURS = {"first_column.py", "my_dag.py"}
TOP_FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}


def test_the_walk_of_a_request_names_functions_that_exist() -> None:
    steps = WALK_STEP.findall((ROOT / "docs" / "architecture.md").read_text())
    assert len(steps) > 20
    for name, path in steps:
        assert name in functions_of(ROOT / path), f"{path} has no function {name}"


def test_every_contract_of_imports_is_a_rule_of_contributing_and_no_other() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    rules = CONTRIBUTING.partition("## Who may import whom")[2].partition("\n## ")[0]
    assert re.findall(r"^- (.+)$", rules, re.MULTILINE) == [contract["name"] for contract in settings["contracts"]]


def test_the_tree_of_contributing_is_that_of_the_package() -> None:
    assert set(documented_folders()) == {
        str(path.parent.relative_to(ROOT)) for path in PACKAGE.rglob("__init__.py") if path.parent.name != "pages"
    }


def test_every_file_name_in_backticks_is_a_file_of_the_repository() -> None:
    wrong = []
    for file in [*PAGES, *SOURCES]:
        texts = docstrings(file) if file.suffix == ".py" else [file.read_text()]
        named = {name for text in texts for name in IN_BACKTICKS.findall(text) if names_a_file(name)}
        wrong += [f"{file.relative_to(ROOT)}: {name}" for name in sorted(named - NOT_OURS) if not is_found(name, file)]
    assert not wrong, "\n".join(wrong)


def functions_of(file: Path) -> set[str]:
    """Names of the functions of a file, with their class: ``main``, ``Wire.call``."""
    tree = ast.parse(file.read_text())
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (inner for inner in node.body if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def documented_folders() -> Iterator[str]:
    """Folders of the package in the tree of CONTRIBUTING, whose indentation says what is inside what."""
    tree = CONTRIBUTING.partition("    airflow_provider_lance/\n")[2].partition("\n    dags/")[0]
    yield PACKAGE.name
    parent = ""
    for line in tree.splitlines():
        names = [word for word in re.split(r" {2,}", line.strip())[0].split() if word.endswith("/")]
        nested = line.startswith(" " * 8)
        for name in names:
            yield f"{PACKAGE.name}/{parent if nested else ''}{name}".rstrip("/")
        if not nested and len(names) == 1:
            parent = names[0]


def names_a_file(name: str) -> bool:
    return name.endswith(".py") or ("/" in name and name.partition("/")[0] in TOP_FOLDERS | package_folders())


def is_found(name: str, file: Path) -> bool:
    """Whether a name is a file or folder, seen from the repository, the package or the file that names it."""
    if any((place / name).exists() for place in (ROOT, PACKAGE, file.parent)):
        return True
    return "/" not in name and name in python_files()


@cache
def package_folders() -> frozenset[str]:
    return frozenset(path.name for path in PACKAGE.iterdir() if path.is_dir())


@cache
def python_files() -> frozenset[str]:
    return frozenset(path.name for path in ROOT.rglob("*.py") if ".venv" not in str(path))


def docstrings(file: Path) -> list[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, documented))
    return [text for node in nodes if (text := ast.get_docstring(node))]

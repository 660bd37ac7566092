"""The documentation: its links lead somewhere, and it says what the code has.

Each operator, sensor and trigger has a page whose table has its arguments, their defaults and whether they are
templated; each error message that is quoted is a text of the source; each example runs. Commands are ones the command
line takes, configurations ones the server reads, and every option, metric and extra is on a page.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Protocol, cast

import pytest
import yaml

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.cli.main import make_parser
from airflow_provider_lance.configuration import OPTIONS
from airflow_provider_lance.engine.main import _parser as engine_parser
from airflow_provider_lance.get_provider_info import get_provider_info
from airflow_provider_lance.namespace.config import Cluster, JobEnvironment, Limits, ServerConfig
from airflow_provider_lance.namespace.jobs.service import start_seconds
from airflow_provider_lance.namespace.server.metrics import Metrics
from tests.product.provider_classes import ProviderClass

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md"))]
PAGE_NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
INCLUDED = re.compile(r'^--8<-- "(.+)"$', re.MULTILINE)
CODE = re.compile(r"(`+)(.+?)(?<!`)\1(?!`)")
#: Read from Airflow's configuration when the class is made.
CONFIGURED = {"deferrable": "`[operators] default_deferrable`"}


class RunProvider(Protocol):
    def __call__(self, *arguments: str, given: str = "") -> str: ...


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_links_to_files_lead_to_files(page: Path) -> None:
    folder = DOCS / "operators" if page.parent.name == "includes" else page.parent  # where its text is included
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (folder / target).exists(), f"{page.name} → {target}"


def test_every_page_is_in_the_navigation() -> None:
    listed = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]
    for page in DOCS.rglob("*.md"):
        path = str(page.relative_to(DOCS))
        assert path.startswith("includes/") or path in listed, path


def test_every_make_target_the_readme_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(
        re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text())
    )
    assert {"demo", "test", "ui"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_python_examples_parse(page: Path) -> None:
    for code in python_blocks(page):
        ast.parse(code)


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> RunProvider:
    """Runs the program beside this file in a process with an Airflow home of its own."""
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")), "PYTHONPATH": str(ROOT)}

    def run(*arguments: str, given: str = "") -> str:
        command = [sys.executable, "-m", "tests.product.provider_classes", *arguments]
        answer = subprocess.run(
            command, cwd=ROOT, env=environment, input=given, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stderr[-3000:]
        return answer.stdout

    return run


@pytest.fixture(scope="module")
def classes(provider: RunProvider) -> list[ProviderClass]:
    return cast("list[ProviderClass]", json.loads(provider().splitlines()[-1]))


def test_each_class_has_a_page_in_the_overview_of_its_kind(classes: list[ProviderClass]) -> None:
    assert {found["kind"] for found in classes} == {"operators", "sensors", "triggers"}
    for found in classes:
        page = page_of(found)
        assert page.exists(), f"{found['name']}: {page.relative_to(ROOT)} is missing"
        assert page.read_text().startswith(f"# {found['name']}\n")
        assert f"[`{found['name']}`]({page.name})" in (page.parent / "index.md").read_text(), found["name"]
        reference = (DOCS / "reference" / f"{found['kind']}.md").read_text()
        name = f"airflow_provider_lance.{found['kind']}.{found['module']}.{found['name']}"
        assert f"::: {name}\n" in reference, f"{name} is not in the reference"


def test_each_page_lists_exactly_the_arguments_of_its_class(classes: list[ProviderClass]) -> None:
    for found in classes:
        listed = [row[0].strip("`") for row in argument_rows(found)]
        assert sorted(listed) == sorted(found["parameters"]), found["name"]


def test_defaults_and_templating_are_as_in_the_code(classes: list[ProviderClass]) -> None:
    wrong = []
    for found in classes:
        for row in argument_rows(found):
            name = row[0].strip("`")
            default = found["parameters"][name]
            expected = CONFIGURED.get(name) or ("required" if default is None else f"`{default}`")
            if row[2] != expected:
                wrong.append(f"{found['name']}.{name}: default {row[2]}, should be {expected}")
            if found["kind"] != "triggers" and row[3] != ("yes" if name in found["templated"] else "no"):
                wrong.append(f"{found['name']}.{name}: templated {row[3]}")
    assert not wrong, "\n".join(wrong)


def test_each_page_has_a_short_example_its_result_and_its_errors(classes: list[ProviderClass]) -> None:
    for found in classes:
        text = page_of(found).read_text()
        example = python_blocks(page_of(found))[0]
        assert found["name"] in example
        assert len(example.strip().splitlines()) <= 15, found["name"]
        assert re.search(r"^## (Returns|Event)$", text, re.MULTILINE), found["name"]
        assert "## Errors" in text, found["name"]


def test_examples_that_need_no_server_run(provider: RunProvider) -> None:
    pages = [page for kind in ("operators", "sensors", "triggers") for page in sorted((DOCS / kind).glob("*.md"))]
    pages += [
        DOCS / f"{name}.md"
        for name in ("assets", "backfill", "declarations", "index", "jobs", "start", "task_group", "udfs", "views")
    ]
    pages += [DOCS / "reference" / "index.md", ROOT / "README.md"]
    examples = [{"page": str(page.relative_to(ROOT)), "code": code} for page in pages for code in python_blocks(page)]
    provider("run", given=json.dumps(examples))


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_quoted_error_messages_are_texts_of_the_source(page: Path) -> None:
    missing = [message for message in quoted_messages(page.read_text()) if not is_in_source(message)]
    assert not missing, missing


def test_every_table_of_troubleshooting_begins_with_what_a_user_sees() -> None:
    headers = {tuple(table[0]) for table in tables((DOCS / "troubleshooting.md").read_text())}
    assert headers == {
        ("the message says", "what happened", "what to do"),
        ("what you see", "what happened", "what to do"),
    }


def test_the_connection_page_names_every_extra_and_option() -> None:
    text = (DOCS / "connection.md").read_text()
    for extra in get_provider_info()["connection-types"][0]["conn-fields"]:
        assert f"`{extra}`" in text, extra
    for option, (kind, default, _) in OPTIONS.items():
        shown = int(default) if kind == "integer" else default
        assert f"| `{option}` | {shown} |" in text, option


def test_the_server_page_names_every_option_and_every_key_of_its_file() -> None:
    text = (DOCS / "server.md").read_text()
    options = {
        option for words, action in commands(make_parser()) if words == "serve" for option in action.option_strings
    }
    assert "--root" in options
    for option in options - {"-h", "--help"}:
        assert f"`{option}`" in text, option
    for kind in (Cluster, JobEnvironment, Limits):
        for key in kind.__dataclass_fields__:
            assert f"`{key}`" in text, f"{kind.__name__}.{key}"


def test_every_option_of_every_command_is_on_a_page() -> None:
    server, listed = (DOCS / "server.md").read_text(), (DOCS / "commands.md").read_text()
    seen = set()
    for words, action in commands(make_parser()):
        text = server if words == "serve" else listed
        assert f"airflow-lance {words.partition(' ')[0]}".strip() in text, words
        assert action.help, f"airflow-lance {words} {action.dest} has no help"
        for option in set(action.option_strings) - {"-h", "--help"}:
            seen.add(option)
            assert option in text, f"airflow-lance {words} {option}"
    assert {"--root", "--scopes", "--limit", "--attempt"} <= seen
    for _, action in commands(engine_parser()):
        for option in set(action.option_strings) - {"-h", "--help"}:
            assert f"`{option}`" in listed, f"engine {option}"


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_commands_in_the_pages_are_ones_the_command_line_takes(page: Path) -> None:
    for command in shell_commands(page.read_text()):
        try:
            make_parser().parse_args(command)
        except SystemExit:
            raise AssertionError(f"{page.name}: airflow-lance {shlex.join(command)}") from None


def test_every_command_has_an_example() -> None:
    text = (DOCS / "commands.md").read_text() + (DOCS / "server.md").read_text()
    shown = [" ".join(command) for command in shell_commands(text)]
    named = {words for words, _ in commands(make_parser())}
    groups = {words.rpartition(" ")[0] for words in named}  # "keys" of "keys create"
    for words in named - groups:
        assert any(command.startswith(words) for command in shown), f"airflow-lance {words}"


def test_every_metric_is_on_the_page_of_metrics() -> None:
    metrics = Metrics()
    metrics.observe("describe_table", 200, 0.1)
    text = (DOCS / "metrics.md").read_text()
    shown = metrics.render({"DONE": 1}, 0) + "\n".join(start_seconds().lines())
    names = re.findall(r"^# TYPE (\S+) (\S+)$", shown, re.MULTILINE)
    assert names
    for name, kind in names:
        assert f"| `{name}` | {kind} |" in text, name
    for name in re.findall(r"\blance_[a-z_]+", "".join(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))):
        assert name in dict(names), name


def test_every_extra_is_on_the_page_of_installing() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (DOCS / "install.md").read_text()
    for extra in extras:
        assert f"`{extra}`" in text, extra


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_configurations_in_the_pages_can_be_read(page: Path) -> None:
    text = page.read_text()
    for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL):
        variables = dict.fromkeys(re.findall(r"\$\{(\w+)\}", block), "value")
        ServerConfig.from_dict(tomllib.loads(block), variables)
    for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        assert yaml.safe_load(block)


def test_readme_and_home_lead_to_every_page() -> None:
    readme, home = (ROOT / "README.md").read_text(), (DOCS / "index.md").read_text()
    for page in [*DOCS.glob("*.md"), *DOCS.glob("guides/*.md")]:
        path = str(page.relative_to(DOCS))
        if path != "index.md":
            assert f"](docs/{path})" in readme, path
            assert f"]({path})" in home, path


def test_every_environment_variable_in_the_pages_is_read_somewhere() -> None:
    files = [*ROOT.glob("airflow_provider_lance/**/*.py"), ROOT / "scripts" / "compose-entrypoint"]
    source = "\n".join(file.read_text() for file in files)
    for page in PAGES:
        for name in re.findall(r"\bLANCE_[A-Z_]+\b", page.read_text()):
            assert name in source, f"{page.name}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_lines_of_text_can_be_read_in_an_editor(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > 160 and not line.startswith("|")] == []


def page_of(found: ProviderClass) -> Path:
    """``LanceTableVersionSensor`` → ``sensors/table_version.md``; ``LanceOperator`` goes by its module."""
    short = found["name"].removeprefix("Lance").removesuffix(found["kind"].removesuffix("s").capitalize())
    words = re.sub(r"(?<!^)(?=[A-Z])", "_", short).lower() or found["module"]
    return DOCS / found["kind"] / f"{words}.md"


def argument_rows(found: ProviderClass) -> list[list[str]]:
    text = INCLUDED.sub(lambda match: (ROOT / match[1]).read_text(), page_of(found).read_text())
    return [row for table in tables(text) if table[0][0] == "parameter" for row in table[1:]]


def tables(text: str) -> Iterator[list[list[str]]]:
    """The Markdown tables of a page: rows of cells, the header first."""
    for block in re.findall(r"(?:^\|.*\|\n)+", text + "\n", re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block.splitlines()]
        yield [rows[0], *rows[2:]]


def python_blocks(page: Path) -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    return [block for block in blocks if not block.startswith("--8<--")]


def commands(parser: argparse.ArgumentParser, words: str = "") -> Iterator[tuple[str, argparse.Action]]:
    """Every argument of every command: ``("serve", --root)``, ``("keys create", --name)``."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, found in action.choices.items():
                yield from commands(found, f"{words} {name}".strip())
        else:
            yield words, action


def shell_commands(text: str) -> Iterator[list[str]]:
    """The arguments of ``airflow-lance`` in blocks and, where they have options, in the text."""
    blocks = "\n".join(re.findall(r"```(?:bash|ini)\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    lines = re.findall(r"^(?:ExecStart=\S*/)?airflow-lance (.+)$", blocks, re.MULTILINE)
    lines += [found[2].removeprefix("airflow-lance ") for found in CODE.finditer(text) if is_command(found[2])]
    for line in lines:
        yield shlex.split(re.sub(r" > \S+$", "", line.partition(" | ")[0]), comments=True)


def is_command(code: str) -> bool:
    return code.startswith(("airflow-lance serve --", "airflow-lance keys create --", "airflow-lance jobs show "))


def quoted_messages(text: str) -> Iterator[str]:
    for table in tables(text):
        if table[0][0] == "the message says":
            for row in table[1:]:
                found = [match[2].strip() for match in CODE.finditer(row[0])]
                assert found, f"no message is quoted in {row[0]!r}"
                yield from found


def is_in_source(message: str) -> bool:
    """Whether one text of the source has these words in this order; ``…`` stands for what is filled in.

    The names of Lance's error codes are made from the members of ``ErrorCode``.
    """
    if message in {code.words for code in ErrorCode}:
        return True
    pieces = [piece.strip() for piece in message.split("…") if piece.strip()]
    assert sum(map(len, pieces)) >= 8, f"{message!r} says too little to be found"
    wanted = re.compile(".*?".join(map(re.escape, pieces)), re.DOTALL)
    return any(wanted.search(text) for text in source_texts())


@cache
def source_texts() -> tuple[str, ...]:
    """Every text literal of the package; the filled-in parts of an f-string are a NUL, docstrings are left out."""
    found = []
    for file in (ROOT / "airflow_provider_lance").rglob("*.py"):
        tree = ast.parse(file.read_text())
        documentation = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
                found.append(node.value)
    return tuple(found)

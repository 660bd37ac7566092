"""The files that a hosting service and a contributor's tools read: workflows, templates, hooks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

SCHEMAS = [
    ("vendor.github-workflows", sorted((GITHUB / "workflows").glob("*.yml"))),
    ("vendor.dependabot", [GITHUB / "dependabot.yml"]),
    ("vendor.github-issue-forms", [GITHUB / "ISSUE_TEMPLATE" / name for name in ("bug.yml", "feature.yml")]),
    ("vendor.github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
]


@pytest.mark.parametrize(("schema", "files"), SCHEMAS, ids=[schema for schema, _ in SCHEMAS])
def test_a_file_fits_its_schema(schema: str, files: list[Path]) -> None:
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_make_target_of_a_workflow_or_hook_exists() -> None:
    files = [*(GITHUB / "workflows").glob("*.yml"), ROOT / ".pre-commit-config.yaml"]
    named = {target for file in files for target in re.findall(r"\bmake ([a-z-]+)", file.read_text())}
    assert {"test-compat", "docs", "soak", "bench", "lint"} <= named
    assert named <= TARGETS


def test_every_hook_calls_a_tool_of_the_venv() -> None:
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]:
        for hook in repository["hooks"]:
            if hook["entry"].startswith("make "):
                continue
            python, _, module = hook["entry"].split()[:3]
            assert python == ".venv/bin/python"
            found = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True)
            assert found.returncode == 0, f"{hook['id']}: {found.stderr}"

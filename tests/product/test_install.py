"""``scripts/venv`` and ``scripts/install.py``: uv with pip's settings, and pip where there is no uv."""

from __future__ import annotations

import base64
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from uv import find_uv_bin

from scripts.install import uv_environment, uv_options

ROOT = Path(__file__).parents[2]
INSTALL = ROOT / "scripts" / "install.py"
NAME = "lance-setup-probe"
LOGIN = "reader:secret"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new venv with pip."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package index as a folder, with one package and no uv."""
    folder = tmp_path_factory.mktemp("index") / "simple" / NAME
    folder.mkdir(parents=True)
    name = NAME.replace("-", "_")
    metadata = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "",
        f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
        f"{metadata}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{metadata}/RECORD"
    lines = [f"{path},{checksum(text)},{len(text)}" for path, text in files.items()]
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, record: "\n".join([*lines, f"{record},,"]) + "\n"}.items():
            wheel.writestr(path, text)
    return folder.parent


def checksum(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    return f"sha256={digest}"


class Index(http.server.ThreadingHTTPServer):
    """A package index that wants a login, and knows which programs asked it."""

    def __init__(self, packages: Path) -> None:
        self.packages = packages
        self.agents: set[str] = set()
        super().__init__(("127.0.0.1", 0), IndexHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{LOGIN}@127.0.0.1:{self.server_port}/simple"


class IndexHandler(http.server.SimpleHTTPRequestHandler):
    server: Index

    def __init__(self, request: object, address: object, server: Index) -> None:
        super().__init__(request, address, server, directory=str(server.packages.parent))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self.headers.get("authorization") != f"Basic {base64.b64encode(LOGIN.encode()).decode()}":
            self.send_response(401)
            self.send_header("www-authenticate", "Basic")
            self.end_headers()
            return
        self.server.agents.add(self.headers["user-agent"].partition("/")[0])
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(packages: Path) -> Iterator[Index]:
    with Index(packages) as server:
        yield server
        server.shutdown()


def run(python: Path, folder: Path, settings: str, uv: str) -> tuple[int, str]:
    """Install the package with the given configuration of pip and with this text as the program ``uv``, if any."""
    subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", NAME], check=True, capture_output=True)
    programs = folder / "bin"
    programs.mkdir()
    if uv:
        (programs / "uv").write_text(f"#!/bin/sh\n{uv}\n")
        (programs / "uv").chmod(0o755)
    (folder / "pip.conf").write_text(settings)
    environment = {
        "HOME": str(folder),
        "PATH": f"{programs}:/usr/bin:/bin",
        "PIP_CONFIG_FILE": str(folder / "pip.conf"),
        "PIP_RETRIES": "0",
        "UV_CACHE_DIR": str(folder / "cache"),
    }
    answer = subprocess.run(
        [python, INSTALL, NAME], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    return answer.returncode, answer.stdout + answer.stderr


def version(python: Path) -> str:
    program = f"from importlib.metadata import version; print(version({NAME!r}))"
    return subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_uv_reads_the_index_of_pips_configuration(python: Path, index: Index, tmp_path: Path) -> None:
    status, told = run(python, tmp_path, f"[global]\nindex-url = {index.url}\n", f'exec "{find_uv_bin()}" "$@"')
    assert status == 0, told
    assert version(python) == "1.0"
    assert "installed by uv" in told
    assert "uv" in index.agents
    assert "pip" not in index.agents
    assert LOGIN not in told


def test_pip_installs_where_uv_fails(python: Path, index: Index, tmp_path: Path) -> None:
    fails = 'test "$1" = --version || { echo "no way" >&2; exit 2; }'
    status, told = run(python, tmp_path, f"[global]\nindex-url = {index.url}\n", fails)
    assert status == 0, told
    assert version(python) == "1.0"
    assert "no way" in told
    assert "uv failed, as said above. pip installs the packages instead" in told
    assert "installed by pip" in told
    assert index.agents == {"pip"}


def test_pip_installs_where_there_is_no_uv(python: Path, packages: Path, tmp_path: Path) -> None:
    settings = f"[install]\nno-index = true\nfind-links = {packages / NAME} {tmp_path / 'missing'}\n"
    status, told = run(python, tmp_path, settings, "")
    assert status == 0, told
    assert version(python) == "1.0"
    assert "There is no uv: Could not find a version that satisfies the requirement uv" in told
    assert "missing" not in told, "pip's warning about a folder that is not there"


def test_what_cannot_be_installed_is_told_and_fails(python: Path, tmp_path: Path) -> None:
    status, told = run(python, tmp_path, "[global]\nno-index = true\n", f'exec "{find_uv_bin()}" "$@"')
    assert status != 0
    assert f"No matching distribution found for {NAME}" in told


def test_settings_of_pip_become_variables_of_uv(tmp_path: Path) -> None:
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.mkdir()
    settings = {
        "index-url": "https://a.example/simple",
        "extra-index-url": f"https://b.example/simple\n{there.as_uri()} {missing.as_uri()}",
        "find-links": f"{there} {missing} https://c.example/links",
        "trusted-host": "a.example b.example",
        "timeout": "20",
        "cert": "/etc/ssl/all.pem",
        "proxy": "http://proxy.example:3128",
        "no-index": "false",
    }
    assert uv_environment(settings, {}) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://a.example/simple",
        "UV_INDEX": f"https://b.example/simple {there.as_uri()}",
        "UV_FIND_LINKS": f"{there},https://c.example/links",
        "UV_INSECURE_HOST": "a.example b.example",
        "UV_HTTP_TIMEOUT": "20",
        "SSL_CERT_FILE": "/etc/ssl/all.pem",
        "ALL_PROXY": "http://proxy.example:3128",
    }
    assert uv_options(settings) == []
    assert uv_options({"no-index": "1"}) == ["--no-index"]
    assert "ALL_PROXY" not in uv_environment(settings, {"ALL_PROXY": "http://mine.example"})
    assert uv_environment(settings, {"UV_DEFAULT_INDEX": "https://mine.example"}) == {}, "uv has settings of its own"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What ``scripts/venv`` reads, with a program that installs nothing."""
    (tmp_path / "scripts").mkdir()
    for file in ("scripts/venv", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "scripts" / "install.py").write_text("import sys; print(*sys.argv[1:])")
    return tmp_path


def make_venv(clone: Path, *extras: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, **variables}
    return subprocess.run(
        [clone / "scripts" / "venv", *extras], env=environment, capture_output=True, text=True, check=False
    )


def test_a_venv_is_made_once_and_again_after_a_pin_has_changed(clone: Path) -> None:
    first = make_venv(clone, "demo")
    assert first.returncode == 0, first.stderr
    assert "-c constraints.txt -e .[demo]" in first.stdout
    assert "a venv with Python 3" in first.stdout
    assert make_venv(clone, "demo").stdout == ""
    assert "-e .[dev]" in make_venv(clone, "demo", "dev").stdout
    with (clone / "constraints.txt").open("a") as pins:
        pins.write("another==1.0\n")
    again = make_venv(clone, "demo").stdout
    assert "-e .[demo]" in again
    assert "a venv with" not in again, "the venv itself is kept"


def test_an_installation_that_failed_is_tried_again(clone: Path) -> None:
    (clone / "scripts" / "install.py").write_text("raise SystemExit(3)")
    assert make_venv(clone, "demo").returncode == 3
    assert make_venv(clone, "demo").returncode == 3


def test_a_missing_python_is_named(clone: Path) -> None:
    answer = make_venv(clone, "demo", PYTHON="/no/such/python")
    assert answer.returncode == 1
    assert "No Python 3.11-3.14 with the modules venv and ensurepip was found." in answer.stderr

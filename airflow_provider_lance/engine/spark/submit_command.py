"""The command line of an engine job: for the server's launcher, an operator or a person.

There are two ways into the same application. ``spark-submit`` starts a JVM, which starts Python. The other one starts
Python, and PySpark starts the JVM with the options of :data:`SUBMIT_ARGUMENTS` once the job needs Spark. This module
builds lists of arguments and environments, all without credentials; it starts nothing.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_provider_lance.engine.spark.driver_jvm import driver_java_options
from airflow_provider_lance.engine.spark.java_home import java_environment
from airflow_provider_lance.engine.spark.session import DEFAULT_MASTER, SUBMIT_ARGUMENTS, TUNED, is_local_master

APPLICATION = str(Path(__file__).resolve().parents[1] / "app.py")


def spark_submit_path() -> str:
    """``SPARK_HOME``'s spark-submit, else the one beside this Python, else the one on the PATH."""
    home = os.environ.get("SPARK_HOME")
    candidates = [Path(home, "bin", "spark-submit")] if home else []
    candidates.append(Path(sys.executable).with_name("spark-submit"))
    for candidate in candidates:
        if candidate.exists():
            return str(candidate)
    return shutil.which("spark-submit") or "spark-submit"


def submit_command(
    arguments: Sequence[str],
    *,
    master: str = DEFAULT_MASTER,
    deploy_mode: str | None = None,
    conf: Mapping[str, str] | None = None,
    py_files: Sequence[str] = (),
    archives: Sequence[str] = (),
    image: str | None = None,
    data_in_jvm: bool = False,
    java_home: str | None = None,
) -> list[str]:
    """The command that runs ``arguments`` of :mod:`airflow_provider_lance.engine.main` on ``master``."""
    options = submit_options(
        master=master,
        deploy_mode=deploy_mode,
        conf=conf,
        py_files=py_files,
        archives=archives,
        image=image,
        data_in_jvm=data_in_jvm,
        java_home=java_home,
    )
    return [spark_submit_path(), *options, APPLICATION, *arguments]


def submit_options(
    *,
    master: str = DEFAULT_MASTER,
    deploy_mode: str | None = None,
    conf: Mapping[str, str] | None = None,
    py_files: Sequence[str] = (),
    archives: Sequence[str] = (),
    image: str | None = None,
    data_in_jvm: bool = False,
    java_home: str | None = None,
) -> list[str]:
    """The options of ``spark-submit``, which come before the application.

    ``conf`` wins over the tuned settings; ``image`` becomes the container image on Kubernetes.
    """
    settings = dict(TUNED)
    if image and master.startswith("k8s://"):
        settings["spark.kubernetes.container.image"] = image
    settings |= conf or {}
    options = ["--master", master]
    if deploy_mode:
        options += ["--deploy-mode", deploy_mode]
    # A driver in the cluster has another JDK and another disk, where this machine's class-data archive does not work.
    if deploy_mode != "cluster" and "spark.driver.extraJavaOptions" not in settings:
        home = java_home or java_environment()["JAVA_HOME"]
        options += ["--driver-java-options", driver_java_options(home, data_in_jvm=data_in_jvm)]
    for key, value in settings.items():
        options += ["--conf", f"{key}={value}"]
    if py_files:
        options += ["--py-files", ",".join(py_files)]
    if archives:
        options += ["--archives", ",".join(archives)]
    return options


def python_command(
    arguments: Sequence[str], options: Sequence[str], conf: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command that starts Python first, and the variables to add to ``environ`` for it.

    ``options`` are those of :func:`submit_options`; PySpark gives them to the JVM that it starts. The rest is what
    ``spark-submit`` does for the Python that it starts: which Python, its hash seed, and Spark's own libraries.
    """
    python = conf.get("spark.pyspark.driver.python") or conf.get("spark.pyspark.python")
    variables = {
        SUBMIT_ARGUMENTS: shlex.join([*options, "pyspark-shell"]),
        "PYTHONHASHSEED": environ.get("PYTHONHASHSEED", "0"),
        "PYTHONUNBUFFERED": "YES",
        "PYTHONPATH": os.pathsep.join(
            [*_spark_libraries(environ.get("SPARK_HOME")), *filter(None, [environ.get("PYTHONPATH")])]
        ),
    }
    command = [python or environ.get("PYSPARK_DRIVER_PYTHON") or sys.executable, APPLICATION, *arguments]
    return command, variables


def _spark_libraries(home: str | None) -> list[str]:
    """PySpark and py4j of a Spark that is not this Python's own package, which fit its JVM."""
    if not home or Path(home).resolve() == _installed_spark():
        return []
    return [str(path) for path in sorted(Path(home, "python", "lib").glob("*.zip"))]


def _installed_spark() -> Path | None:
    spec = importlib.util.find_spec("pyspark")
    return Path(spec.origin).resolve().parent if spec is not None and spec.origin else None


def submit_environment(*, master: str = DEFAULT_MASTER, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables to add to the child's environment: Java, Spark's home, and this Python for the driver.

    Executors of a cluster use their own Python (``spark.pyspark.python``); local workers are this one.
    """
    given = os.environ if environ is None else environ
    found = dict(java_environment(given))
    found["PYSPARK_DRIVER_PYTHON"] = given.get("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local_master(master):
        found["PYSPARK_PYTHON"] = given.get("PYSPARK_PYTHON", sys.executable)
    if not given.get("SPARK_HOME"):
        # Otherwise spark-submit asks the first python3 on the PATH where Spark is installed.
        installed = _installed_spark()
        if installed is not None:
            found["SPARK_HOME"] = str(installed)
    return found

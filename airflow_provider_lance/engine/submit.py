"""The ``spark-submit`` command line of an engine job: for the server's launcher, an operator or a person.

Builds a list of arguments and an environment; starts nothing. No credential is ever among them.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_provider_lance.engine.java import java_environment
from airflow_provider_lance.engine.jvm import driver_java_options
from airflow_provider_lance.engine.session import DEFAULT_MASTER, TUNED

APPLICATION = str(Path(__file__).with_name("app.py"))


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
    """The command that runs ``arguments`` of :mod:`airflow_provider_lance.engine.main` on ``master``.

    ``conf`` wins over the tuned settings; ``image`` becomes the container image on Kubernetes.
    """
    settings = dict(TUNED)
    if image and master.startswith("k8s://"):
        settings["spark.kubernetes.container.image"] = image
    settings |= conf or {}
    command = [spark_submit_path(), "--master", master]
    if deploy_mode:
        command += ["--deploy-mode", deploy_mode]
    # A driver in the cluster has another JDK and another disk: the archive of this machine would not fit there.
    if deploy_mode != "cluster" and "spark.driver.extraJavaOptions" not in settings:
        home = java_home or java_environment()["JAVA_HOME"]
        command += ["--driver-java-options", driver_java_options(home, data_in_jvm=data_in_jvm)]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    if py_files:
        command += ["--py-files", ",".join(py_files)]
    if archives:
        command += ["--archives", ",".join(archives)]
    return [*command, APPLICATION, *arguments]


def submit_environment(*, master: str = DEFAULT_MASTER, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables to add to the child's environment: Java, Spark's home, and this Python for the driver.

    Executors of a cluster use their own Python (``spark.pyspark.python``); local workers are this one.
    """
    given = os.environ if environ is None else environ
    found = dict(java_environment(given))
    found["PYSPARK_DRIVER_PYTHON"] = given.get("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        found["PYSPARK_PYTHON"] = given.get("PYSPARK_PYTHON", sys.executable)
    if not given.get("SPARK_HOME"):
        # spark-submit would ask whichever python3 is first on the PATH where Spark is.
        spec = importlib.util.find_spec("pyspark")
        if spec is not None and spec.origin:
            found["SPARK_HOME"] = str(Path(spec.origin).parent)
    return found

"""Spark sessions tuned for this engine, and its own code shipped to executors that do not have it installed.

The only module that decides Spark settings. Settings a deployment made itself always win.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

TUNED = {
    # A task costs 26-43 ms through TCP, half of that through unix sockets.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    # Python workers get and free megabytes for every batch. By default glibc hands them back to the system and gets
    # them again: 700 page faults in a task with batches of 1.7 MB, 29,000 with 3.5 MB; with these settings none.
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.scheduler.mode": "FIFO",
    "spark.task.maxFailures": "4",
}
# What a Python worker imports of this package.
_SHIPPED = ("api", "definitions", "engine")
LOCAL_IP = "SPARK_LOCAL_IP"
DEFAULT_MASTER = "local[*,4]"  # plain local[*] never retries a task


def loopback_environment(master: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variable that keeps the web UI and the ports of a local driver on this machine; empty for clusters.

    Spark's UI listens on all addresses otherwise, and asks nobody for a password. A deployment's own value wins.
    """
    given = os.environ if environ is None else environ
    if not master.startswith("local") or given.get(LOCAL_IP):
        return {}
    return {LOCAL_IP: "127.0.0.1"}


def session_factory(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> partial[SparkSession]:
    """A callable for ``JobContext.make_spark``: nothing starts until a job really needs Spark."""
    return partial(make_session, name, master=master, conf=conf)


def make_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None, data_in_jvm: bool = True
) -> SparkSession:
    """A session with the tuned settings. Under ``spark-submit`` master and deploy mode are the submitter's.

    ``data_in_jvm``: whether rows will pass through the JVM, as in Spark SQL; see :func:`jvm.driver_java_options`.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # Under spark-submit the JVM runs already and knows the submitter's settings; without it SparkConf() is empty,
        # and our default master would win over --master (seen).
        SparkContext._ensure_initialized()
    given = SparkConf()
    builder = SparkSession.builder.appName(name)
    if master or not given.contains("spark.master"):
        builder = builder.master(master or DEFAULT_MASTER)
    for key, value in TUNED.items():
        if not given.contains(key):
            builder = builder.config(key, value)
    if "JAVA_HOME" not in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ:
        from airflow_provider_lance.engine.java import java_environment
        from airflow_provider_lance.engine.jvm import driver_java_options

        os.environ.update(java_environment())
        if not given.contains("spark.driver.extraJavaOptions"):
            options = driver_java_options(os.environ["JAVA_HOME"], data_in_jvm=data_in_jvm)
            builder = builder.config("spark.driver.extraJavaOptions", options)
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    chosen = master or given.get("spark.master", DEFAULT_MASTER) or ""
    if chosen.startswith("local"):
        # Otherwise workers are whatever python3 comes first on the PATH, without pylance.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    loopback = loopback_environment(chosen)
    os.environ.update(loopback)
    try:
        session = builder.getOrCreate()
    finally:
        for variable in loopback:  # it is for this JVM alone
            os.environ.pop(variable, None)
    if session.sparkContext.uiWebUrl:
        # Spark itself tells only the port; Airflow makes a button of this line.
        log.info("Spark UI: %s", session.sparkContext.uiWebUrl)
    if not session.sparkContext.master.startswith("local"):
        ship_package(session.sparkContext)
    return session


def ship_package(context: SparkContext) -> None:
    """Send this package's pure Python to the executors; pylance itself must be installed there."""
    root = Path(__file__).resolve().parents[1]
    # Executors fetch it from here whenever one of them starts: it must live as long as this driver.
    folder = tempfile.mkdtemp(prefix="lance-engine-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = Path(folder, "airflow_provider_lance.zip")
    with zipfile.ZipFile(archive, "w") as file:
        for part in (root / "__init__.py", *(part for folder in _SHIPPED for part in (root / folder).rglob("*.py"))):
            file.write(part, part.relative_to(root.parent))
    context.addPyFile(str(archive))


def default_parallelism(context: SparkContext) -> int:
    """How many tasks the cluster runs at once, as far as it knows now (executors may still be registering)."""
    return max(1, context.defaultParallelism)

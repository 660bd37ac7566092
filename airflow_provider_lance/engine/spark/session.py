"""Spark sessions tuned for this engine, and its own code shipped to executors that do not have it installed.

This is the only module that decides Spark settings. Settings that a deployment made itself always win.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import shlex
import shutil
import socket
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.job.pandas_import import import_spark_without_pandas

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from airflow_provider_lance.engine.job.context import JobContext

log = logging.getLogger(__name__)

TUNED = {
    # A task costs 26-43 ms through TCP, half of that through unix sockets.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    # Python workers allocate and free megabytes for every batch. By default glibc returns them to the system each time:
    # 700 page faults in a task with batches of 1.7 MB, 29,000 with 3.5 MB, and none with these settings.
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.scheduler.mode": "FIFO",
    "spark.task.maxFailures": "4",
}
# What a Python worker imports of this package.
_SHIPPED = ("api", "definitions", "engine", "storage")
LOCAL_IP = "SPARK_LOCAL_IP"
DEFAULT_MASTER = "local[*,4]"  # plain local[*] never retries a task
SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"  # PySpark starts its JVM with these options of spark-submit
_GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"  # spark-submit has started the JVM, which listens there


def is_local_master(master: str | None) -> bool:
    """Whether executors are threads of the driver on this machine."""
    return (master or "").startswith("local")


def loopback_environment(master: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variable that binds the web UI and the ports of a local driver to this machine; empty for clusters.

    Without it Spark's UI listens on all addresses, without a password. A deployment's own value wins.
    """
    given = os.environ if environ is None else environ
    if not is_local_master(master) or given.get(LOCAL_IP):
        return {}
    return {LOCAL_IP: "127.0.0.1"}


def session_factory(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> partial[SparkSession]:
    """A callable for ``JobContext.make_spark``: nothing starts until a job really needs Spark."""
    return partial(make_session, name, master=master, conf=conf)


def submitted_master(environ: Mapping[str, str] | None = None) -> str | None:
    """The master that the submitter chose for a driver that was started as Python first; None for any other."""
    options = shlex.split((os.environ if environ is None else environ).get(SUBMIT_ARGUMENTS, ""))
    return next((value for name, value in itertools.pairwise(options) if name == "--master"), None)


def start_gateway() -> None:
    """Connect to the JVM of ``spark-submit``, or start one with the submitter's options. Starting takes seconds."""
    from pyspark import SparkContext

    import_spark_without_pandas()
    with _on_loopback(submitted_master() or ""):
        SparkContext._ensure_initialized()


def make_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None, data_in_jvm: bool = True
) -> SparkSession:
    """A session with the tuned settings. Master and deploy mode are the submitter's, where there is one.

    ``data_in_jvm`` tells whether rows pass through the JVM, as in Spark SQL; see
    :func:`~airflow_provider_lance.engine.spark.driver_jvm.driver_java_options`.
    """
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    import_spark_without_pandas()
    submitted = _GATEWAY_PORT in os.environ or submitted_master() is not None
    if submitted:
        # The JVM has the submitter's settings. Without this call SparkConf() is empty and the default master would win
        # over --master.
        start_gateway()
    given = SparkConf()
    builder = SparkSession.builder.appName(name)
    if master or not given.contains("spark.master"):
        builder = builder.master(master or DEFAULT_MASTER)
    for key, value in TUNED.items():
        if not given.contains(key):
            builder = builder.config(key, value)
    if "JAVA_HOME" not in os.environ and not submitted:
        from airflow_provider_lance.engine.spark.driver_jvm import driver_java_options
        from airflow_provider_lance.engine.spark.java_home import java_environment

        os.environ.update(java_environment())
        if not given.contains("spark.driver.extraJavaOptions"):
            options = driver_java_options(os.environ["JAVA_HOME"], data_in_jvm=data_in_jvm)
            builder = builder.config("spark.driver.extraJavaOptions", options)
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    chosen = master or given.get("spark.master", DEFAULT_MASTER) or ""
    python = given.get("spark.pyspark.python", None)
    if python:
        os.environ["PYSPARK_PYTHON"] = python  # PySpark itself reads only the variable
    elif is_local_master(chosen):
        # Otherwise workers run the first python3 on the PATH, which may lack pylance.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with _on_loopback(chosen):
        session = builder.getOrCreate()
    if session.sparkContext.uiWebUrl:
        # Spark itself logs only the port; the operators read the address from this line.
        log.info("Spark UI: %s", session.sparkContext.uiWebUrl)
    if not is_local_master(session.sparkContext.master):
        ship_package(session.sparkContext)
    return session


@contextmanager
def _on_loopback(master: str) -> Iterator[None]:
    """Set the variables of :func:`loopback_environment`; a later session of this process may need other values."""
    loopback = loopback_environment(master)
    os.environ.update(loopback)
    try:
        yield
    finally:
        for variable in loopback:
            os.environ.pop(variable, None)


def ship_package(context: SparkContext) -> None:
    """Send the Python code of this package to the executors; pylance itself must be installed there."""
    root = Path(__file__).resolve().parents[2]
    # Executors fetch the archive when they start, so it must exist as long as this driver runs.
    folder = tempfile.mkdtemp(prefix="lance-engine-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = Path(folder, "airflow_provider_lance.zip")
    with zipfile.ZipFile(archive, "w") as file:
        for part in (root / "__init__.py", *(part for folder in _SHIPPED for part in (root / folder).rglob("*.py"))):
            file.write(part, part.relative_to(root.parent))
    context.addPyFile(str(archive))


def default_parallelism(context: SparkContext) -> int:
    """How many tasks the cluster runs at once, as far as is known while executors may still be registering."""
    return max(1, context.defaultParallelism)


def progress_host(context: JobContext) -> str | None:
    """The address at which the executors of a job that has started Spark reach its driver; None on this machine."""
    spark = context.spark.sparkContext
    # A copy of the settings takes a call to the JVM for each of them, so a local job does without.
    if is_local_master(spark.master):
        return None
    return spark.getConf().get("spark.driver.host") or socket.getfqdn()

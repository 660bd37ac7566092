"""The engine's command line, as the launcher or ``spark-submit`` starts it: it runs one job and reports its end."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
import uuid
import warnings
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.engine.job.claim import read_launch_token
from airflow_provider_lance.engine.job.context import JobContext
from airflow_provider_lance.engine.job.driver_work import DRIVER_ROWS
from airflow_provider_lance.engine.job.log_reporter import LogReporter
from airflow_provider_lance.engine.run_job import (
    Assignment,
    Runtime,
    application_name,
    execute,
    exit_of,
    planned,
    run_job,
)
from airflow_provider_lance.engine.spark.session import make_session, session_factory, start_gateway
from airflow_provider_lance.system.channels import Channel

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one job, or one after another; the exit status is 0 done, 1 failed, 3 claim lost, 4 cancelled."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    # httpx logs every heartbeat and py4j every connection; Lance warns at each commit that DataReplacement is new.
    for name in ("httpx", "py4j"):
        logging.getLogger(name).setLevel(logging.WARNING)
    os.environ.setdefault("LANCE_LOG", "error")
    # PySpark starts the JVM by a fork, and Lance cannot know that the child is another program at once.
    warnings.filterwarnings("ignore", message="lance is not fork-safe", category=UserWarning)
    if arguments.spec:
        return _run_spec(arguments)
    if not (arguments.namespace and (arguments.job_id or arguments.channel is not None)):
        _parser().error("either --spec, or --job-id with --namespace")
    return _run_assigned(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m airflow_provider_lance.engine",
        description="Execute a Lance backfill, view refresh or write on Spark.",
        epilog="The launch token and credentials come from LANCE_JOB_TOKEN_FILE or the environment, never from here.",
    )
    parser.add_argument("--job-id", help="the job to claim")
    parser.add_argument("--attempt", type=int, default=1, help="which launch of the job this is")
    parser.add_argument("--namespace", help="URL of the namespace that has the job")
    parser.add_argument("--spec", type=Path, help="a job spec as JSON, with a location; needs no server")
    parser.add_argument("--answer", type=Path, help="with --spec: also write the answer into this file")
    parser.add_argument(
        "--while-locked", action="store_true", help="with --spec: end when nobody locks the spec's file any more"
    )
    parser.add_argument("--plan", action="store_true", help="say what would be done, and touch nothing")
    parser.add_argument("--master", help="Spark master, where spark-submit does not name one")
    parser.add_argument(
        "--driver-rows", type=int, default=DRIVER_ROWS, help="SQL over at most so many rows runs in the driver"
    )
    parser.add_argument(
        "--channel",
        type=int,
        help="descriptor of the socket over which the server hands over jobs",
    )
    parser.add_argument("--start-spark", action="store_true", help="start Spark at once, because the job will need it")
    parser.add_argument("--warm-up", action="store_true", help="with --channel: start Spark before there is a job")
    parser.add_argument(
        "--same-function", action="store_true", help="with --channel: after a function, take jobs of the same function"
    )
    return parser


def _run_spec(arguments: argparse.Namespace) -> int:
    try:
        document = json.loads(arguments.spec.read_text(encoding="utf-8"))
        spec = planned(JobSpec.read(document), arguments.plan)
    except (OSError, ValueError) as error:
        _parser().error(f"{arguments.spec} cannot be run: {error}")
    job_id = arguments.job_id or document.get("job_id") or f"spec-{uuid.uuid4().hex[:12]}"
    context = JobContext(
        spec=spec,
        make_spark=session_factory(application_name(spec), master=arguments.master),
        reporter=LogReporter(
            lines=not sys.stderr.isatty(),  # a terminal shows a bar instead
            lock=arguments.spec if arguments.while_locked else None,
        ),
        storage_options=_storage_options(),
        job_id=job_id,
        attempt=arguments.attempt,
        driver_rows=arguments.driver_rows,
    )
    state, result, failure = execute(context)
    answer = {
        "job_id": job_id,
        "job_type": spec.job_type,
        "table_id": spec.table_id,
        "state": state.value,
        "result": result,
        "failure": failure and failure.to_dict(),
    }
    if arguments.answer:
        arguments.answer.write_text(json.dumps(answer), encoding="utf-8")
    sys.stdout.write(json.dumps(answer) + "\n")
    return exit_of(state)


def _storage_options() -> dict[str, str]:
    """Credentials for a run without a server, from the JSON file that ``LANCE_STORAGE_OPTIONS_FILE`` names."""
    path = os.environ.get("LANCE_STORAGE_OPTIONS_FILE")
    if not path:
        return {}
    return {str(key): str(value) for key, value in json.loads(Path(path).read_text(encoding="utf-8")).items()}


def _start_jvm() -> None:
    try:
        start_gateway()
    except Exception:
        log.debug("The JVM could not be started early", exc_info=True)  # the job fails with the same error


def _run_assigned(arguments: argparse.Namespace) -> int:
    first = None
    if arguments.job_id:
        secrets = read_launch_token()
        first = Assignment(arguments.job_id, arguments.attempt, arguments.namespace, secrets, arguments.plan)
    if arguments.channel is None and first is not None:
        if arguments.start_spark:
            threading.Thread(target=_start_jvm, name="start-jvm", daemon=True).start()
        runtime = Runtime(lambda name: make_session(name, master=arguments.master), arguments.driver_rows)
        return run_job(first, runtime).exit
    from airflow_provider_lance.engine.waiting_driver import WaitingDriver

    driver = WaitingDriver(
        Channel.of_descriptor(arguments.channel),
        arguments.namespace,
        master=arguments.master,
        driver_rows=arguments.driver_rows,
        same_function=arguments.same_function,
    )
    return driver.run(first, warm_up=arguments.warm_up, start_spark=arguments.start_spark)

"""Stands in for ``spark-submit`` where no YARN and no Kubernetes can be had; a shell script of that name runs it.

It writes down its command line and environment, as far as they would be seen, and then does for the driver what such a
cluster does: gives it the variables that the command line asks for, with the application's files in its folder. The
driver is the engine's own claim and report; it computes nothing.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from airflow_provider_lance.api.client import LanceClient
from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.engine.job.claim import HeartbeatReporter, claim_job, read_launch_token
from airflow_provider_lance.engine.main import _parser
from airflow_provider_lance.engine.run_job import settings_of

RESULT = {"rows_assigned": 5, "rows_failed": 0, "rows_remaining": 0, "source_version": 1, "published_version": 2}


def options(argv: list[str]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Spark's options, its settings, and the application's arguments."""
    found: dict[str, str] = {}
    conf: dict[str, str] = {}
    position = 0
    while argv[position].startswith("--"):
        name, value = argv[position : position + 2]
        if name == "--conf":
            key, _, setting = value.partition("=")
            conf[key] = setting
        else:
            found[name] = value
        position += 2
    found["application"] = argv[position]
    return found, conf, argv[position + 1 :]


def from_secret(reference: str, namespace: str) -> str:
    name, _, key = reference.partition(":")
    url = f"{os.environ['FAKE_KUBERNETES']}/api/v1/namespaces/{namespace}/secrets/{name}"
    with urllib.request.urlopen(url) as answer:
        return base64.b64decode(json.load(answer)["data"][key]).decode()


def driver_environment(found: dict[str, str], conf: dict[str, str]) -> dict[str, str]:
    if found.get("--deploy-mode") != "cluster":
        return dict(os.environ)
    environment = {}
    for key, value in conf.items():
        for prefix in ("spark.yarn.appMasterEnv.", "spark.kubernetes.driverEnv."):
            if key.startswith(prefix):
                environment[key.removeprefix(prefix)] = value
        if key.startswith("spark.kubernetes.driver.secretKeyRef."):
            namespace = conf.get("spark.kubernetes.namespace", "default")
            environment[key.removeprefix("spark.kubernetes.driver.secretKeyRef.")] = from_secret(value, namespace)
    return environment


def main() -> int:
    argv = sys.argv[1:]
    record = Path(os.environ["FAKE_SPARK_RECORD"])
    record.write_text(json.dumps({"argv": argv, "environment": dict(os.environ)}))
    found, conf, application = options(argv)
    environment = driver_environment(found, conf)
    files = [Path(path) for path in found.get("--files", "").split(",") if path]
    os.chdir(tempfile.mkdtemp(dir=record.parent))
    for file in files:
        Path(file.name).symlink_to(file)
    arguments = _parser().parse_args(application)
    token_file = environment.get("LANCE_JOB_TOKEN_FILE")
    secrets = read_launch_token(environment)
    client: Any
    with LanceClient(settings_of(arguments.namespace, secrets)) as client:
        claim = claim_job(client, arguments.job_id, arguments.attempt, secrets["launch_token"])
        if found.get("--deploy-mode") != "cluster":
            print("INFO airflow_provider_lance.engine.spark.session: Spark UI: http://10.1.2.3:4040", flush=True)
        elif found["--master"] == "yarn":
            print("\t tracking URL: http://rm.test:8088/proxy/application_1_0001/", flush=True)
        time.sleep(float(os.environ.get("FAKE_SPARK_SECONDS", "0")))
        with HeartbeatReporter(client, claim) as reporter:
            reporter.finish(JobState.DONE, RESULT)
    seen = {
        "argv": argv,
        "environment": dict(os.environ),
        "secrets": [*secrets.values(), claim.token],
        "token_file": str(Path(token_file).resolve()) if token_file else None,
        "token_mode": stat.S_IMODE(os.stat(token_file).st_mode) if token_file else None,
    }
    record.write_text(json.dumps(seen))
    print("LoggingPodStatusWatcherImpl: Container final statuses: exit code: 0", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

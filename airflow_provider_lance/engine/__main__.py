"""``python -m airflow_provider_lance.engine``: how to submit this engine, or with arguments, run it right here."""

from __future__ import annotations

import shlex
import sys

from airflow_provider_lance.engine.main import main
from airflow_provider_lance.engine.submit import submit_command

_HOW = """\
Run a job of a namespace (the launch token is in a file, named by LANCE_JOB_TOKEN_FILE):
  {claimed}

Run a spec without any server, here or on a cluster:
  python -m airflow_provider_lance.engine --spec job.json
  {spec}

spec: {{"job_type": "backfill_column", "table_id": ["t"], "location": "/data/t.lance", "request": {{"column": "n"}}}}
Workers need pylance installed; this package is sent along. Add --plan to see what would be done.
"""


def run() -> int:
    if len(sys.argv) > 1:
        return main()
    claimed = submit_command(["--job-id", "JOB", "--attempt", "1", "--namespace", "http://localhost:2333"])
    spec = submit_command(["--spec", "job.json"], master="spark://HOST:7077")
    sys.stdout.write(_HOW.format(claimed=shlex.join(claimed), spec=shlex.join(spec)))
    return 0


if __name__ == "__main__":
    sys.exit(run())

"""``python -m airflow_provider_lance.engine``: run a job in this process, or print how the engine is submitted.

``--application-path`` prints the path of the file that ``spark-submit`` runs, for images and cluster settings.
"""

from __future__ import annotations

import shlex
import sys

from airflow_provider_lance.engine.main import main
from airflow_provider_lance.engine.spark.submit_command import APPLICATION, submit_command

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
    if sys.argv[1:] == ["--application-path"]:
        sys.stdout.write(f"{APPLICATION}\n")
        return 0
    if len(sys.argv) > 1:
        return main()
    claimed = submit_command(["--job-id", "JOB", "--attempt", "1", "--namespace", "http://localhost:2333"])
    spec = submit_command(["--spec", "job.json"], master="spark://HOST:7077")
    sys.stdout.write(_HOW.format(claimed=shlex.join(claimed), spec=shlex.join(spec)))
    return 0


if __name__ == "__main__":
    sys.exit(run())

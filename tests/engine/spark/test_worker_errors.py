"""What Spark's errors say about the Python worker in which a task failed."""

from __future__ import annotations

import pytest

from airflow_provider_lance.engine.spark.worker_errors import worker_death, worker_error

ABORTED = "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3"
JAVA = (
    "\n\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:635)\nCaused by: another\n\t... 1 more"
)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            f"An error occurred while calling o1.\n: {ABORTED}: PythonException: Traceback (most recent call "
            f'last):\n  File "worker.py", line 7, in f\n    g()\n    ^^^\nValueError: no such thing\n{JAVA}',
            "ValueError: no such thing",
        ),
        (
            '\n  An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File "f.py"\n'
            "OSError: disk\nSQLSTATE: 38000",
            "OSError: disk",
        ),
        (f": org.apache.spark.SparkException: {ABORTED}{JAVA}", f"org.apache.spark.SparkException: {ABORTED}"),
        ("", "RuntimeError"),
    ],
)
def test_the_last_line_of_the_workers_traceback_is_told(message: str, told: str) -> None:
    assert worker_error(RuntimeError(message)) == told


def test_a_dead_worker_is_told_with_its_exit_code() -> None:
    error = RuntimeError(f"{ABORTED}: Python worker exited unexpectedly (crashed): exited with code 137{JAVA}")
    assert "died (exit code 137) while it ran the function p:f." in str(worker_death(error, "the function p:f"))
    assert worker_death(RuntimeError("ValueError"), "its rule") is None

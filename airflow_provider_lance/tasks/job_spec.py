"""A job spec that runs without a namespace server: it is read, given to a driver in private files, and answered.

This module knows the engine's command line, and nothing of Spark.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow.providers.common.compat.sdk import AirflowFailException, BaseHook

from airflow_provider_lance.api.jobs import Job, JobSpec
from airflow_provider_lance.system.private_files import private_folder, write_private
from airflow_provider_lance.tasks.templating import parse_literal


def read_spec(value: object) -> JobSpec:
    """A spec from a dict, from its text as JSON or Python writes it, or from the path of a JSON file."""
    source = "The spec"
    try:
        value = parse_literal(value)
        if isinstance(value, str):
            text = value.strip()
            if not text.startswith("{"):
                source = f"The spec in {text!r}"
                text = Path(text).read_text(encoding="utf-8")
            value = json.loads(text)
        return JobSpec.read(value)
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError as error:
        reason = str(error)
    raise AirflowFailException(f"{source} cannot be run. {reason}")


def read_storage_options(conn_id: str) -> dict[str, str]:
    """The storage options in a connection's extra, named as Lance names them."""
    extra = BaseHook.get_connection(conn_id).extra_dejson
    if not extra or not all(isinstance(value, str | int | float | bool) for value in extra.values()):
        raise AirflowFailException(
            f"The extra of connection {conn_id!r} must hold storage options as Lance names them, such as "
            '{"aws_access_key_id": "…", "aws_secret_access_key": "…", "aws_region": "…"}.'
        )
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in extra.items()}


@dataclass(frozen=True)
class SpecRun:
    """One run of a spec: the files, arguments and variables of its driver."""

    folder: Path
    job_id: str
    attempt: int
    variables: dict[str, str]

    @property
    def arguments(self) -> list[str]:
        return [
            *("--spec", str(self.folder / "spec.json")),
            *("--job-id", self.job_id),
            *("--attempt", str(self.attempt)),
            *("--answer", str(self.folder / "answer.json")),
            "--while-locked",
        ]

    def answer(self) -> Job | None:
        """The job as its driver described it at the end; ``None`` if the driver wrote no answer."""
        try:
            return Job.from_wire(json.loads((self.folder / "answer.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None


@contextlib.contextmanager
def open_spec_run(spec: JobSpec, job_id: str, attempt: int, storage_options: Mapping[str, str]) -> Iterator[SpecRun]:
    """Write the files of a run, which only this user can read, and remove them afterwards.

    This process locks the spec's file. The lock is released if the process is killed, and the driver then ends.
    """
    with private_folder("lance-spec-") as folder, contextlib.ExitStack() as held:
        write_private(folder / "spec.json", json.dumps(spec.to_dict()))
        lock = held.enter_context((folder / "spec.json").open("rb"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        variables = {}
        if storage_options:
            write_private(folder / "storage.json", json.dumps(dict(storage_options)))
            variables["LANCE_STORAGE_OPTIONS_FILE"] = str(folder / "storage.json")
        yield SpecRun(folder, job_id, attempt, variables)

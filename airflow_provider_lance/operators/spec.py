"""A job spec that runs without any namespace server: read, handed to a driver in private files, its answer taken back.

Knows the engine's command line, not Spark.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException, BaseHook

from airflow_provider_lance.api.jobs import Job, JobSpec
from airflow_provider_lance.operators.rendered import literal
from airflow_provider_lance.private_files import private_folder, write_private


def read_spec(given: Any) -> JobSpec:
    """A spec out of a dict, its text (a rendered template, as JSON or as Python writes it) or a JSON file's path."""
    source = "The spec"
    try:
        given = literal(given)
        if isinstance(given, str):
            text = given.strip()
            if not text.startswith("{"):
                source = f"The spec in {text!r}"
                text = Path(text).read_text(encoding="utf-8")
            given = json.loads(text)
        return JobSpec.read(given)
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
    return {name: _text(value) for name, value in extra.items()}


@dataclass(frozen=True)
class SpecRun:
    """One run of a spec, with the arguments and variables its driver needs."""

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
        """What the driver said of its job; ``None`` if it ended without a word."""
        try:
            return Job.from_wire(json.loads((self.folder / "answer.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None


@contextlib.contextmanager
def spec_run(spec: JobSpec, job_id: str, attempt: int, storage_options: Mapping[str, str]) -> Iterator[SpecRun]:
    """The files of a run: only this user can read them, and they are gone afterwards.

    This process locks the spec's file. If it is killed the lock goes with it, and the driver ends by itself.
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


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

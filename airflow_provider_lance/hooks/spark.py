"""``spark-submit`` as a driver needs it: secrets on no command line, and an end that leaves no process behind.

Imports ``SparkSubmitHook``; only ``operators/spark.py`` imports this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_provider_lance.namespace.processes import ProcessGroup


@dataclass(frozen=True)
class DriverInput:
    """What a driver is given beside what the DAG's author configured.

    ``environment`` is for the process of ``spark-submit`` alone. ``env_vars`` of the hook would not do: on YARN and
    Kubernetes they become ``--conf`` arguments, which every user of the machine can read, and a driver in client mode
    on Kubernetes would not even get them. ``cluster_variables`` go that way: names of files, never secrets.
    """

    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    cluster_variables: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    conf: dict[str, str] = field(default_factory=dict)


class LanceSparkSubmitHook(SparkSubmitHook):
    """A ``SparkSubmitHook`` that ``SparkSubmitOperator`` has configured, taken over with all its settings.

    :param configured: the hook to take over.
    :param given: what the driver gets beside them.
    :param read_line: sees every line ``spark-submit`` writes.
    """

    def __init__(self, configured: SparkSubmitHook, given: DriverInput, read_line: Callable[[str], None]) -> None:
        # Not SparkSubmitHook's: that would take its thirty arguments once more.
        self.__dict__.update(vars(configured))
        self._application_args = list(given.arguments)
        self._files = ",".join(filter(None, [self._files, *given.files])) or None
        self._conf = {**self._conf, **given.conf}
        self._env_vars = {**given.cluster_variables, **(self._env_vars or {})}
        self._environment = given.environment
        self._read_line = read_line
        self._group: ProcessGroup | None = None

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command = list(super()._build_spark_submit_command(application))  # sets the environment, too
        self._env = {**self._environment, **(self._env or {})}
        return command

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        # A group of its own: killing the JVM alone leaves the Python driver alive.
        return super().submit(application, **{"start_new_session": True, **kwargs})

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        assert self._submit_sp is not None
        self._group = ProcessGroup.of(self._submit_sp.pid)
        super()._process_spark_submit_log(self._lines(itr))

    def _lines(self, itr: Iterator[Any]) -> Iterator[Any]:
        for line in itr:
            self._read_line(line)
            yield line

    def on_kill(self) -> None:
        """End the driver where it runs, then whatever is left of ``spark-submit`` here."""
        super().on_kill()  # first: it ends YARN's application or the pod only while spark-submit still runs
        if self._group is not None:
            self._group.kill()

"""``LanceSparkSubmitHook``: runs ``spark-submit`` without secrets on a command line, and ends all of its processes.

It imports ``SparkSubmitHook``, which is slow, so only ``operators/spark.py`` imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_lance.hooks.spark_provider import SparkSubmitHook
from airflow_provider_lance.system.process_groups import ProcessGroup


@dataclass(frozen=True)
class DriverInput:
    """What a driver is given beside the settings of the DAG's author.

    ``environment`` is set for the process of ``spark-submit`` alone. The hook's ``env_vars`` become ``--conf``
    arguments on YARN and Kubernetes, which every user of the machine can read, and a driver in client mode on
    Kubernetes does not get them. ``cluster_variables`` become ``env_vars``, so they hold names of files and no secrets.
    """

    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    cluster_variables: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    conf: dict[str, str] = field(default_factory=dict)


class LanceSparkSubmitHook(SparkSubmitHook):
    """A ``SparkSubmitHook`` with the settings of another one, and with a driver's own input.

    It is documented in ``docs/spark-submit.md``.

    :param configured: The hook that ``SparkSubmitOperator`` configured. All its settings are taken over.
    :param driver: What the driver is given beside these settings.
    :param read_line: A function that is called with every line that ``spark-submit`` writes.
    """

    def __init__(self, configured: SparkSubmitHook, driver: DriverInput, read_line: Callable[[str], None]) -> None:
        # SparkSubmitHook's own constructor would need its thirty arguments once more.
        self.__dict__.update(vars(configured))
        self._application_args = list(driver.arguments)
        self._files = ",".join(filter(None, [self._files, *driver.files])) or None
        self._conf = {**self._conf, **driver.conf}
        self._env_vars = {**driver.cluster_variables, **(self._env_vars or {})}
        self._environment = driver.environment
        self._read_line = read_line
        self._group: ProcessGroup | None = None

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command = list(super()._build_spark_submit_command(application))  # it sets self._env, too
        self._env = {**self._environment, **(self._env or {})}
        return command

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        # The processes form a group of their own, because killing the JVM alone leaves the Python driver alive.
        return super().submit(application, **{"start_new_session": True, **kwargs})

    def _process_spark_submit_log(self, itr: Iterator[str]) -> None:
        assert self._submit_sp is not None
        self._group = ProcessGroup.of(self._submit_sp.pid)
        super()._process_spark_submit_log(self._lines(itr))

    def _lines(self, itr: Iterator[str]) -> Iterator[str]:
        for line in itr:
            self._read_line(line)
            yield line

    def on_kill(self) -> None:
        """End the driver where it runs, and then the processes of ``spark-submit`` on this machine."""
        # This comes first: it ends YARN's application or the pod only while spark-submit still runs.
        super().on_kill()
        if self._group is not None:
            self._group.kill()

"""What the sensors share: the hook, and whether they wait in the triggerer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    conf,
)

from airflow_provider_lance.configuration import DEFAULT_CONNECTION

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.hooks.lance import LanceNamespaceHook

_NET_SECONDS = 60


class LanceBaseSensor(BaseSensorOperator):
    """The common part of all sensors; not for use in a DAG.

    :param lance_conn_id: the connection of the namespace. (templated)
    :param deferrable: wait in the triggerer instead of on a worker; ``[operators] default_deferrable`` by default. A
        namespace without a server (``impl`` of the connection) is poked.
    :param poke_interval: seconds between looks. When it is not given, a deferred sensor looks every ``[lance]
        poll_interval`` seconds and a poking one every minute.
    """

    ui_color = "#fdf1e4"
    template_fields: Sequence[str] = ("lance_conn_id",)

    def __init__(
        self,
        *,
        lance_conn_id: str = DEFAULT_CONNECTION,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: timedelta | float | None = None,
        **kwargs: Any,
    ) -> None:
        if poke_interval is not None:
            kwargs["poke_interval"] = poke_interval
        super().__init__(**kwargs)
        #: Of a deferred sensor; ``None`` takes the configuration's.
        self.poll_interval = float(self.poke_interval) if poke_interval is not None else None
        self.lance_conn_id = lance_conn_id
        self.deferrable = deferrable

    @cached_property
    def hook(self) -> LanceNamespaceHook:
        from airflow_provider_lance.hooks.lance import LanceNamespaceHook

        return LanceNamespaceHook(self.lance_conn_id)

    def execute(self, context: Context) -> Any:
        """Poke. A timeout says why the last look failed, if it did."""
        try:
            return super().execute(context)
        except AirflowSensorTimeout:
            if (reason := self.failed_look()) is None:
                raise
        raise self.timed_out(reason)

    def failed_look(self) -> str | None:
        """Why the last look failed; ``None`` if it was answered."""
        return None

    def first_look(self, context: Context) -> Any:
        """A poke before deferring; ``soft_fail``, ``never_fail`` and ``silent_fail`` say what its failure means."""
        try:
            return self.poke(context)
        except AirflowSkipException:
            raise
        except AirflowException as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from error
            if not self.silent_fail or isinstance(error, AirflowFailException):
                raise
            self.log.warning("The first look failed, will look again: %s", error)
            return None

    def wait_for(self, trigger: Any) -> None:
        """Defer. The trigger keeps the sensor's own timeout; Airflow's is the net below it, a minute later."""
        self.defer(
            trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout + _NET_SECONDS)
        )

    def wait_again(self, context: Context, what: str) -> Any:
        """After an event that is not ours: triggers of SQLite get the ids of deleted ones, and that of a cleared try
        may still speak in our name."""
        self.log.info("An event about %s is of an earlier run of this sensor; waiting for our own.", what)
        return self.execute(context)

    @property
    def deadline(self) -> float:
        return time.time() + self.timeout

    def timed_out(self, reason: str | None = None) -> AirflowSensorTimeout:
        """The sensor's timeout; ``reason`` is why the last look failed, if it did."""
        if reason:
            return AirflowSensorTimeout(f"Sensor has timed out: the last look failed: {reason}")
        return AirflowSensorTimeout(f"Sensor has timed out: nothing happened within {self.timeout:g} s.")

    @property
    def defers(self) -> bool:
        return self.deferrable and self.hook.speaks_rest

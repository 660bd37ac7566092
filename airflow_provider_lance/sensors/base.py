"""What the sensors share: the hook, and waiting in the triggerer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn, Unpack

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    conf,
)

from airflow_provider_lance.configuration import DEFAULT_CONNECTION
from airflow_provider_lance.tasks.operator_arguments import AirflowSensorArguments

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, PokeReturnValue
    from airflow.triggers.base import BaseTrigger

    from airflow_provider_lance.hooks.lance import LanceNamespaceHook

# The trigger keeps the sensor's timeout itself. Airflow's own timeout comes this much later, in case it does not.
_GRACE_SECONDS = 60


class LanceBaseSensor(BaseSensorOperator):
    """The base class of all sensors. It is not for use in a DAG.

    :param lance_conn_id: The id of the namespace's connection. (templated)
    :param deferrable: Whether the sensor waits in the triggerer instead of on a worker. The default is ``[operators]
        default_deferrable`` of Airflow's configuration. A namespace without a server is poked on the worker.
    :param poke_interval: The seconds between two polls. By default a deferred sensor polls every ``[lance]
        poll_interval`` seconds, and a sensor on a worker every minute.
    """

    ui_color = "#fdf1e4"
    template_fields: Sequence[str] = ("lance_conn_id",)

    def __init__(
        self,
        *,
        lance_conn_id: str = DEFAULT_CONNECTION,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: timedelta | float | None = None,
        **kwargs: Unpack[AirflowSensorArguments],
    ) -> None:
        super().__init__(**({} if poke_interval is None else {"poke_interval": poke_interval}), **kwargs)
        #: The interval of a deferred sensor; ``None`` takes the configuration's.
        self.poll_interval = float(self.poke_interval) if poke_interval is not None else None
        self.lance_conn_id = lance_conn_id
        self.deferrable = deferrable

    @cached_property
    def hook(self) -> LanceNamespaceHook:
        from airflow_provider_lance.hooks.lance import LanceNamespaceHook

        return LanceNamespaceHook(self.lance_conn_id)

    def execute(self, context: Context) -> object:
        """Poke on the worker. A timeout says why the last poll failed, if it did."""
        try:
            return super().execute(context)
        except AirflowSensorTimeout:
            if (reason := self.last_error()) is None:
                raise
        raise self.timed_out(reason)

    def last_error(self) -> str | None:
        """Why the last poll failed; ``None`` if it was answered."""
        return None

    def poke_before_deferring(self, context: Context) -> bool | PokeReturnValue:
        """Poke once. ``soft_fail``, ``never_fail`` and ``silent_fail`` apply to its failure as to that of any poke."""
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
            return False

    def defer_to(self, trigger: BaseTrigger) -> NoReturn:
        """Wait in the triggerer."""
        timeout = timedelta(seconds=self.timeout + _GRACE_SECONDS)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def wait_again(self, context: Context, subject: str) -> object:
        """Wait again after the event of another trigger.

        SQLite reuses the id of a deleted trigger, so the event may belong to an earlier try that was cleared.
        """
        self.log.info("An event about %s is of an earlier run of this sensor; waiting for our own.", subject)
        return self.execute(context)

    @property
    def deadline(self) -> float:
        """The time, in seconds since the epoch, at which a wait that begins now times out."""
        return time.time() + self.timeout

    def timed_out(self, reason: str | None = None) -> AirflowSensorTimeout:
        """The sensor's timeout; ``reason`` is why the last poll failed, if it did."""
        if reason:
            return AirflowSensorTimeout(f"Sensor has timed out: the last look failed: {reason}")
        return AirflowSensorTimeout(f"Sensor has timed out: nothing happened within {self.timeout:g} s.")

    @property
    def can_defer(self) -> bool:
        """Whether the sensor waits in the triggerer."""
        return self.deferrable and self.hook.speaks_rest

"""Why a request failed, in lines for a task's log: the reason first, then the remedy, the operation and its codes.

Operators, sensors and triggers share this module, so that the same failure reads the same wherever it happens.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.missing_features import describe_failure, is_permanent

_Failure = TypeVar("_Failure", bound=BaseException)


class TaskLog(Protocol):
    """The log of a task or of a trigger."""

    def info(self, message: str, /, *args: object) -> object: ...

    def warning(self, message: str, /, *args: object) -> object: ...

    def error(self, message: str, /, *args: object) -> object: ...


def task_error(error: WireError | ValueError) -> AirflowException:
    """A failed request as the exception that a task raises.

    It is an ``AirflowFailException``, which ends the retries, where the same request can only fail again.
    """
    if not isinstance(error, WireError):
        return AirflowFailException(str(error))
    final = error.code == ErrorCode.INVALID_INPUT or is_permanent(error)
    return (AirflowFailException if final else AirflowException)(describe_failure(error))


def log_failure(log: TaskLog, failure: _Failure) -> _Failure:
    """Log each line of a failure as an ERROR and return the failure, so that the caller can raise it.

    Airflow shows an exception behind the name of its class and module, where the reason is outside of the window.
    """
    for line in filter(None, str(failure).splitlines()):
        log.error("%s", line)
    return failure

"""``LanceJobOperator``: submit a job once, hand out its id at once, wait for it, end with it.

What makes job operators hard is in this room: a kill while running or deferred, deadlines, errors that say what the
job said; rejoining after a crash and cancelling after a clear are in ``rejoin.py``. Subclasses say what is submitted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowSkipException,
    AirflowTaskTimeout,
    conf,
)

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import Identifier
from airflow_provider_lance.api.job_words import IDEMPOTENCY_KEY, TERMINAL_STATES, JobState
from airflow_provider_lance.assets.lance import assets_of
from airflow_provider_lance.configuration import read_configuration
from airflow_provider_lance.links.job import LanceJobLink
from airflow_provider_lance.operators.base import LanceBaseOperator, choice, log_reason, task_error
from airflow_provider_lance.operators.conflict import (
    OnConflict,
    conflict_failure,
    job_in_the_way,
    join_failure,
    wait_failure,
    wait_timeout,
)
from airflow_provider_lance.operators.rejoin import (
    cancel_and_wait,
    conclude,
    forget,
    idempotency_key,
    read_mark,
    rejoin,
    remember,
)
from airflow_provider_lance.operators.result import (
    describe_target,
    job_failure,
    job_result,
    job_rows,
    settled,
    show_traceback,
    wait_for_job,
    warn_of_failed_rows,
)
from airflow_provider_lance.triggers.outcome import LOST, TIMEOUT, Event, job_event

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.api.jobs import Job


class Submitted(NamedTuple):
    """A job this task waits for. ``owned``: we started it, so it ends with us; a job we joined does not."""

    job_id: str
    table_id: list[str]
    job_type: str
    owned: bool = True
    deadline: float | None = None
    version: int | None = None


class LanceJobOperator(LanceBaseOperator):
    """The common part of the operators that start a job; not for use in a DAG.

    :param table_id: the table or view the job writes, a list of strings or one string with the delimiter.
    :param wait_for_completion: wait for the job's end. Otherwise the task succeeds with the ``job_id``, for a
        :class:`~airflow_provider_lance.sensors.job.LanceJobSensor`, and the job is not bound to anybody waiting.
    :param deferrable: wait in the triggerer instead of on a worker; ``[operators] default_deferrable`` by default.
    :param poll_interval: seconds between looks; ``[lance] poll_interval`` by default.
    :param timeout: how long the job may take, counted from its submission; ``execution_timeout`` by default. After
        that the job is cancelled and the task fails with a timeout, on a worker as well as deferred.
    :param cancel_on_kill: cancel the job when the task is killed, cleared or marked.
    :param on_conflict: when another job already writes the same column or view: ``fail``; ``join`` that job and take
        its result, if its request is equal to this one, and fail otherwise; or ``wait`` for its end, within this task's
        ``timeout``, and submit then. Neither cancels that job.
    :param lease_seconds: the server ends the job when nobody has asked for it for so long;
        ``[lance] job_lease_seconds`` by default, and none without ``wait_for_completion``.
    :param skip_if_unchanged: end as skipped, with the reason, when there is nothing to do.
    :param request_context: further context entries of the request, sent as ``x-lance-ctx-<key>``.
    """

    operation: ClassVar[str]
    job_type: ClassVar[str] = ""
    template_fields: Sequence[str] = ("lance_conn_id", "table_id", "request_context")
    operator_extra_links = (LanceJobLink(),)

    def __init__(
        self,
        *,
        table_id: Identifier,
        wait_for_completion: bool = True,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float | None = None,
        timeout: timedelta | float | None = None,
        cancel_on_kill: bool = True,
        on_conflict: OnConflict = "fail",
        lease_seconds: int | None = None,
        skip_if_unchanged: bool = False,
        request_context: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        choice("on_conflict", on_conflict, "fail", "join", "wait")
        if not isinstance(timeout, timedelta | int | float | None) or isinstance(timeout, bool):
            raise ValueError(f"timeout is a timedelta or a number of seconds, not {timeout!r}.")
        self.table_id = table_id
        self.wait_for_completion = wait_for_completion
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.timeout = timeout
        self.cancel_on_kill = cancel_on_kill
        self.on_conflict = on_conflict
        self.lease_seconds = lease_seconds
        self.skip_if_unchanged = skip_if_unchanged
        self.request_context = request_context
        self._submitted: Submitted | None = None
        self._link: str | None = None
        self._killed = False
        self._began: float | None = None

    @property
    def has_job(self) -> bool:
        """Whether there is a job to link to: none before the submit was accepted."""
        return self._submitted is not None

    # What a subclass says

    def target(self, table_id: list[str]) -> str:
        """What the job writes, for messages."""
        return describe_target(table_id)

    def request(self) -> dict[str, Any]:
        """The request's fields besides ``id`` and ``context``."""
        raise NotImplementedError

    def options(self) -> dict[str, str]:
        """The context entries that steer the job's execution."""
        return {}

    def unchanged(self, table_id: list[str]) -> str | None:
        """Why there is nothing to do, where that can be told before a job is started."""
        return None

    def did_nothing(self, result: dict[str, Any]) -> bool:
        """Whether a finished job's result says that nothing was to be done."""
        return False

    def submit(self, context: Context, table_id: list[str]) -> dict[str, Any]:
        """Send the request; returns the answer with its ``job_id``."""
        return self.hook.call(
            self.operation, {"id": table_id, **self.request(), "context": self._request_context(context, table_id)}
        )

    # The life of the task

    def execute(self, context: Context) -> dict[str, Any]:
        table_id = self.parse_id(self.table_id)
        rejoined = rejoin(context, self.hook, self.log)
        if rejoined is not None:
            submitted = self._bound(rejoined.job_id, table_id, created_ms=rejoined.created_ms)
            self.log.info("Rejoined job %s of an earlier try; it is %s.", rejoined.job_id, rejoined.state.value)
            return self._started(context, submitted, rejoined)
        if self.skip_if_unchanged and (reason := self.unchanged(table_id)) is not None:
            raise AirflowSkipException(reason)
        self._began = time.time()
        return self._started(context, self._start(context, table_id))

    def _started(self, context: Context, submitted: Submitted, rejoined: Job | None = None) -> dict[str, Any]:
        """From the moment the job is known."""
        if not submitted.job_id:
            return self._result(context, submitted)
        self._submitted = submitted
        if self._killed:  # while the request was on its way, and the job had no name yet
            self.on_kill()
            raise AirflowException(f"The task was ended while it submitted job {submitted.job_id}.")
        self._announce(context, submitted, rejoined)
        if not self.wait_for_completion:
            conclude(context)
            return self.describe_result(submitted, (rejoined.state if rejoined else JobState.QUEUED).value, None)
        if rejoined is not None and rejoined.state.terminal:
            return self._complete(context, submitted, job_event(rejoined))
        return self._follow(context, submitted)

    def _follow(self, context: Context, submitted: Submitted) -> dict[str, Any]:
        """Wait for the job, here or in the triggerer."""
        if self.deferrable and self.hook.speaks_rest:
            from airflow_provider_lance.triggers.job import LanceJobTrigger

            self.defer(
                trigger=LanceJobTrigger(
                    job_id=submitted.job_id,
                    lance_conn_id=self.lance_conn_id,
                    deadline=submitted.deadline,
                    poll_interval=self.poll_interval,
                    cancel_on_kill=self.cancel_on_kill and submitted.owned,
                ),
                method_name="execute_complete",
                kwargs={"submitted": submitted._asdict()},
            )
        try:
            event = self._wait(submitted)
        except AirflowTaskTimeout:  # Airflow's own execution_timeout
            if submitted.owned:
                self._end_job(context, submitted)
            raise
        return self._complete(context, submitted, event)

    def execute_complete(
        self, context: Context, event: Event, submitted: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Where a deferred task goes on."""
        if submitted is None:  # ``dag.test()`` resumes with the event alone
            saved = read_mark(context)
            owned = saved is None or saved["job_id"] == event["job_id"]
            submitted = self._bound(event["job_id"], self.parse_id(self.table_id), owned=owned)._asdict()
        self._submitted = Submitted(**submitted)
        if event["job_id"] != self._submitted.job_id:
            # Triggers of SQLite get the ids of deleted ones: that of a cleared try may still speak, in our name.
            self.log.info("Job %s is of an earlier run of this task; waiting for our own.", event["job_id"])
            return self._follow(context, self._submitted)
        return self._complete(context, self._submitted, event)

    def execute_after_other(
        self, context: Context, event: Event, began: float | None = None, waited_for: str | None = None
    ) -> dict[str, Any]:
        """Where a deferred task goes on that waited for another task's job before it could submit its own."""
        self._began = began if began is not None else time.time()
        ended = waited_for if event["job_id"] == waited_for and event["state"] in TERMINAL_STATES else None
        table_id = self.parse_id(self.table_id)
        deadline = self._bound("", table_id).deadline
        if deadline is not None and time.time() >= deadline:
            raise log_reason(self.log, wait_timeout(event["job_id"]))
        return self._started(context, self._start(context, table_id, ended))

    def on_kill(self) -> None:
        """Cancel the job. Runs inside a signal handler, so it uses an HTTP client of its own."""
        self._killed = True
        submitted = self._submitted
        if submitted is None or not (self.cancel_on_kill and submitted.owned):
            return
        self.log.info("Cancelling job %s, because its task was ended.", submitted.job_id)
        settings = self.hook.resolved.settings
        try:
            if settings is None:
                self.hook.cancel_job(submitted.job_id)
            else:
                from airflow_provider_lance.api.wire import Wire  # loaded: it submitted the job

                # The interrupted code may hold the locks of the hook's own client.
                with Wire(settings) as wire:
                    wire.call("cancel_job", {"job_id": submitted.job_id})
        except WireError as error:
            self.log.warning("The job could not be cancelled: %s", error)

    # Rejoin (operators/rejoin.py) or submit

    def _start(self, context: Context, table_id: list[str], ended: str | None = None) -> Submitted:
        """Submit, join or wait; without a job id where the request was accepted and needed no job.

        ``ended`` is the job of somebody else that was waited for last.
        """
        while True:
            failure: AirflowException | None
            try:
                answer = self.submit(context, table_id)
            except WireError as error:
                other = job_in_the_way(self.hook, error)
                if other is None:
                    failure = task_error(error)
                elif self.on_conflict == "fail":
                    failure = conflict_failure(error, other)
                elif self.on_conflict == "join" and not other.cancelling:
                    failure = join_failure(error, other, {**self.request(), **self.options()})
                    if failure is None:
                        self.log.info("Joining job %s, whose request is the same as this one.", other.job_id)
                        return self._bound(other.job_id, table_id, owned=False)
                else:
                    failure = wait_failure(error, other) if other.job_id == ended else None
            else:
                job_id, version = str(answer.get("job_id") or ""), answer.get("version")
                submitted = self._bound(job_id, table_id, version=int(version) if version is not None else None)
                if job_id:
                    self._submitted = submitted  # from here on a kill knows what to cancel
                    remember(context, job_id)
                return submitted
            if failure is not None:
                raise log_reason(self.log, failure)
            assert other is not None
            ended = self._wait_for_other(other.job_id, table_id)

    def _wait_for_other(self, job_id: str, table_id: list[str]) -> str | None:
        """Wait for the end of a job that is not ours, here or in the triggerer; its id, once it has ended."""
        self.log.info("Job %s is in the way; waiting for its end before submitting.", job_id)
        waits = self._bound(job_id, table_id, owned=False)
        if self.deferrable and self.hook.speaks_rest:
            from airflow_provider_lance.triggers.job import LanceJobTrigger

            self.defer(
                trigger=LanceJobTrigger(
                    job_id=job_id,
                    lance_conn_id=self.lance_conn_id,
                    deadline=waits.deadline,
                    poll_interval=self.poll_interval,
                    cancel_on_kill=False,
                ),
                method_name="execute_after_other",
                kwargs={"began": self._began, "waited_for": job_id},
            )
        event = self._wait(waits)
        if event["state"] == TIMEOUT:
            raise log_reason(self.log, wait_timeout(job_id))
        if self._killed:
            raise AirflowException("The task was ended while it waited for another job; it submitted none.")
        return job_id if event["state"] in TERMINAL_STATES else None

    def _bound(
        self,
        job_id: str,
        table_id: list[str],
        *,
        owned: bool = True,
        created_ms: int | None = None,
        version: int | None = None,
    ) -> Submitted:
        limit = self.timeout if self.timeout is not None else self.execution_timeout
        seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
        began = created_ms / 1000 if created_ms else self._began or time.time()
        return Submitted(
            job_id=job_id,
            table_id=table_id,
            job_type=self.job_type,
            owned=owned,
            deadline=began + seconds if seconds is not None else None,
            version=version,
        )

    def _request_context(self, context: Context, table_id: list[str]) -> dict[str, str]:
        lease = self.lease_seconds
        if lease is None:
            lease = read_configuration().job_lease_seconds
        return {
            **(self.request_context or {}),
            **self.options(),
            IDEMPOTENCY_KEY: idempotency_key(context, self.operation, table_id),
            "lease-seconds": str(lease if self.wait_for_completion else 0),
        }

    def _announce(self, context: Context, submitted: Submitted, job: Job | None = None) -> None:
        """Before the first wait, so that a running task already shows its job."""
        ti = context["ti"]
        ti.xcom_push(key="job_id", value=submitted.job_id)
        link = self._link = self.hook.job_link(submitted.job_id, job)
        LanceJobLink().push(context, link)
        ti.xcom_push(
            key="asset",
            value={
                "table_id": submitted.table_id,
                "uris": [asset.uri for asset in assets_of(self.outlets, submitted.table_id)],
            },
        )
        self.log.info("Job %s%s", submitted.job_id, f": {link}" if link else "")

    # Wait and end

    def _wait(self, submitted: Submitted) -> Event:
        return wait_for_job(
            self.hook,
            submitted.job_id,
            self.log,
            deadline=submitted.deadline,
            poll_interval=self.poll_interval,
        )

    def _complete(self, context: Context, submitted: Submitted, event: Event) -> dict[str, Any]:
        event = settled(self.hook, event)
        if event["state"] == JobState.DONE.value:
            return self._result(context, submitted, event.get("result"))
        if event["state"] == TIMEOUT and submitted.owned:
            self._end_job(context, submitted)
        if event["state"] == JobState.CANCELLED.value and self._killed:
            # Whoever ended the task decides about its next try, not the job that ended with it.
            raise AirflowException(f"Job {submitted.job_id} was cancelled, because its task was ended.")
        link = self._link or self.hook.resolved.link(submitted.job_id)
        if link is None and event["state"] not in {TIMEOUT, LOST}:  # then the server may not answer
            link = self.hook.job_link(submitted.job_id)
        failure = log_reason(self.log, job_failure(event, self.target(submitted.table_id), link))
        show_traceback(self.log, event)
        raise failure

    def _result(self, context: Context, submitted: Submitted, result: dict[str, Any] | None = None) -> dict[str, Any]:
        conclude(context)
        warn_of_failed_rows(self.log, result)
        if self.skip_if_unchanged and result is not None and self.did_nothing(result):
            raise AirflowSkipException(f"Job {submitted.job_id} found nothing to do: {result}")
        described = self.describe_result(submitted, JobState.DONE.value, result)
        self.publish(
            context,
            submitted.table_id,
            version=described["version"],
            job_id=submitted.job_id or None,
            rows=job_rows(result),
        )
        return described

    def describe_result(self, submitted: Submitted, state: str, result: dict[str, Any] | None) -> dict[str, Any]:
        """What the task returns; the same for a sensor."""
        return job_result(
            submitted.job_id or None, submitted.job_type, submitted.table_id, state, result, version=submitted.version
        )

    def _end_job(self, context: Context, submitted: Submitted) -> None:
        """Cancel and forget: the next try must not rejoin a job that is about to end."""
        try:
            cancel_and_wait(self.hook, submitted.job_id)
        except (WireError, AirflowException) as error:
            self.log.warning("The job could not be cancelled: %s", error)
        forget(context)

"""``LanceJobOperator``: submits a job once, publishes its id at once, waits for it, and ends with it.

Subclasses say what is submitted. ``tasks/rejoin.py`` finds the job of an earlier try, ``tasks/conflict.py`` decides
about a job that already writes the same, and ``tasks/job_outcome.py`` says what the job's end means to the task.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, NamedTuple, NoReturn, Unpack

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowSkipException,
    AirflowTaskTimeout,
    conf,
)

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.job_states import TERMINAL_STATES, JobState
from airflow_provider_lance.configuration import read_configuration
from airflow_provider_lance.links.job import LanceJobLink
from airflow_provider_lance.operators.base import LanceTableOperator
from airflow_provider_lance.tasks.conflict import OnConflict, find_job_to_follow, wait_timeout
from airflow_provider_lance.tasks.errors import log_failure
from airflow_provider_lance.tasks.job_follower import recheck_timeout, wait_for_job, watch_job
from airflow_provider_lance.tasks.job_outcome import (
    LOST,
    TIMEOUT,
    JobEvent,
    JobResult,
    ended_event,
    job_failure,
    job_result,
    job_summary,
    log_traceback,
    warn_of_failed_rows,
    written_rows,
)
from airflow_provider_lance.tasks.operator_arguments import TableArguments
from airflow_provider_lance.tasks.outlets import outlet_uris
from airflow_provider_lance.tasks.rejoin import (
    cancel_and_wait,
    discard_job,
    mark_concluded,
    read_saved_job,
    rejoin,
    save_job,
    submit_context,
)
from airflow_provider_lance.tasks.templating import choice

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.api.jobs import Job
    from airflow_provider_lance.api.plain_data import JsonObject


class Submitted(NamedTuple):
    """A job that the task waits for. Airflow stores it with a deferred task, so its fields stay as they are.

    ``owned`` tells that the task started the job, which then ends with the task. A job that was joined does not.
    """

    job_id: str
    table_id: list[str]
    job_type: str
    owned: bool = True
    deadline: float | None = None
    version: int | None = None


class LanceJobOperator(LanceTableOperator):
    """The base class of the operators that start a job. It is not for use in a DAG.

    What these operators do when a task or a server dies is documented in ``docs/operators/index.md``.

    :param table_id: The identifier of the table or view that the job writes, as a list of strings or as one string
        with the connection's delimiter. (templated)
    :param wait_for_completion: Whether the task waits for the job's end. Otherwise it succeeds with the ``job_id``,
        for a :class:`~airflow_provider_lance.sensors.job.LanceJobSensor`, and the job has no lease.
    :param deferrable: Whether the task waits in the triggerer instead of on a worker. The default is ``[operators]
        default_deferrable`` of Airflow's configuration.
    :param poll_interval: The seconds between two polls of the job. The default is ``[lance] poll_interval``.
    :param timeout: How long the job may take, counted from its submission. The default is ``execution_timeout``. The
        job is cancelled after that, and the task fails with a timeout, on a worker as well as deferred.
    :param cancel_on_kill: Whether the job is cancelled when the task is killed, cleared or marked.
    :param on_conflict: What happens if another job already writes the same column or view. ``fail`` fails the task.
        ``join`` waits for that job and takes its result if its request is equal, and fails otherwise. ``wait`` waits
        for its end, within ``timeout``, and then submits. That job is never cancelled.
    :param lease_seconds: The seconds after which the server ends a job that nobody has asked about. The default is
        ``[lance] job_lease_seconds``.
    :param skip_if_unchanged: Whether the task ends as skipped when there is nothing to do.
    :param request_context: More context entries of the request, which are sent as ``x-lance-ctx-<key>``. (templated)
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``job_id``, ``job_type``, ``table_id``, ``state``, ``version`` and the job's ``result``.
    """

    operation: ClassVar[str]
    job_type: ClassVar[str] = ""
    template_fields: Sequence[str] = (*LanceTableOperator.template_fields, "request_context")
    template_fields_renderers: ClassVar[dict[str, str]] = {"request_context": "json"}
    operator_extra_links = (LanceJobLink(),)

    def __init__(
        self,
        *,
        wait_for_completion: bool = True,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float | None = None,
        timeout: timedelta | float | None = None,
        cancel_on_kill: bool = True,
        on_conflict: OnConflict = "fail",
        lease_seconds: int | None = None,
        skip_if_unchanged: bool = False,
        request_context: dict[str, str] | None = None,
        **kwargs: Unpack[TableArguments],
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(timeout, timedelta | int | float | None) or isinstance(timeout, bool):
            raise ValueError(f"timeout is a timedelta or a number of seconds, not {timeout!r}.")
        self.wait_for_completion = wait_for_completion
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.timeout = timeout
        self.cancel_on_kill = cancel_on_kill
        self.on_conflict = choice("on_conflict", on_conflict, OnConflict)
        self.lease_seconds = lease_seconds
        self.skip_if_unchanged = skip_if_unchanged
        self.request_context = request_context
        self._submitted: Submitted | None = None
        self._link: str | None = None
        self._killed = False
        self._began: float | None = None

    @property
    def has_job(self) -> bool:
        """Whether there is a job to link to. There is none before the submit was accepted."""
        return self._submitted is not None

    # What a subclass defines

    def target(self, table_id: list[str]) -> str:
        """What the job writes, for messages."""
        return self.hook.join_id(table_id)

    def request(self) -> dict[str, object]:
        """The request's fields besides ``id`` and ``context``."""
        raise NotImplementedError

    def options(self) -> dict[str, str]:
        """The context entries that control how the job is executed."""
        return {}

    def unchanged(self, table_id: list[str]) -> str | None:
        """Why there is nothing to do, where that is known before a job is started."""
        return None

    def did_nothing(self, result: JsonObject) -> bool:
        """Whether a finished job's result says that there was nothing to do."""
        return False

    def submit(self, context: Context, table_id: list[str]) -> JsonObject:
        """Send the request and return the answer, which has a ``job_id`` if there is a job."""
        fields = {"id": table_id, **self.request(), "context": self.full_request_context(context, table_id)}
        return self.hook.call(self.operation, fields)

    def full_request_context(self, context: Context, table_id: list[str]) -> dict[str, str]:
        """All context entries of the request."""
        lease = self.lease_seconds if self.lease_seconds is not None else read_configuration().job_lease_seconds
        return {
            **(self.request_context or {}),
            **self.options(),
            **submit_context(context, self.operation, table_id, lease if self.wait_for_completion else 0),
        }

    # The life of the task

    def execute(self, context: Context) -> JobResult:
        table_id = self.parse_id(self.table_id)
        rejoined = rejoin(context, self.hook, self.log)
        if rejoined is not None:
            submitted = self._track(rejoined.job_id, table_id, created_ms=rejoined.created_ms)
            return self._follow(context, submitted, rejoined)
        if self.skip_if_unchanged and (reason := self.unchanged(table_id)) is not None:
            raise AirflowSkipException(reason)
        self._began = time.time()
        return self._follow(context, self._submit_or_join(context, table_id))

    def execute_complete(
        self, context: Context, event: JobEvent, submitted: Mapping[str, object] | None = None
    ) -> JobResult:
        """Continue a task that was deferred until its job's end."""
        if submitted is None:  # ``dag.test()`` resumes with the event alone
            saved = read_saved_job(context)
            owned = saved is None or saved["job_id"] == event["job_id"]
            submitted = self._track(event["job_id"], self.parse_id(self.table_id), owned=owned)._asdict()
        self._submitted = Submitted(**submitted)
        if event["job_id"] != self._submitted.job_id:
            # SQLite reuses the id of a deleted trigger, so the event may belong to an earlier try that was cleared.
            self.log.info("Job %s is of an earlier run of this task; waiting for our own.", event["job_id"])
            return self._wait(context, self._submitted)
        return self._finish(context, self._submitted, event)

    def execute_after_other(
        self, context: Context, event: JobEvent, began: float | None = None, waited_for: str | None = None
    ) -> JobResult:
        """Continue a task that was deferred until the end of another job, before it could submit its own."""
        self._began = began if began is not None else time.time()
        ended = waited_for if event["job_id"] == waited_for and event["state"] in TERMINAL_STATES else None
        table_id = self.parse_id(self.table_id)
        deadline = self._track("", table_id).deadline
        if deadline is not None and time.time() >= deadline:
            raise log_failure(self.log, wait_timeout(event["job_id"]))
        return self._follow(context, self._submit_or_join(context, table_id, ended))

    def on_kill(self) -> None:
        """Cancel the job. Airflow calls this in a signal handler, so it uses an HTTP client of its own."""
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
                # The module is loaded already: the job was submitted with it.
                from airflow_provider_lance.api.http.wire import Wire

                # The interrupted code may hold the locks of the hook's own client.
                with Wire(settings) as wire:
                    wire.call("cancel_job", {"job_id": submitted.job_id})
        except WireError as error:
            self.log.warning("The job could not be cancelled: %s", error)

    # Submitting

    def _submit_or_join(self, context: Context, table_id: list[str], waited_for: str | None = None) -> Submitted:
        """Submit a job, or join another one. The result has no job id if the request needed no job.

        ``waited_for`` is the conflicting job that the task waited for last.
        """
        while True:
            try:
                answer = self.submit(context, table_id)
            except WireError as error:
                refused = error
            else:
                job_id, version = str(answer.get("job_id") or ""), answer.get("version")
                submitted = self._track(job_id, table_id, version=int(version) if version is not None else None)
                if job_id:
                    self._submitted = submitted  # from here on a kill cancels the job
                    save_job(context, job_id)
                return submitted
            other = find_job_to_follow(
                self.hook,
                refused,
                self.log,
                on_conflict=self.on_conflict,
                waited_for=waited_for,
                request={**self.request(), **self.options()},
            )
            if self.on_conflict == "join" and not other.cancelling:
                self.log.info("Joining job %s, whose request is the same as this one.", other.job_id)
                return self._track(other.job_id, table_id, owned=False)
            waited_for = self._wait_for_other(other.job_id, table_id)

    def _wait_for_other(self, job_id: str, table_id: list[str]) -> str | None:
        """Wait for the end of a conflicting job, here or in the triggerer; returns its id if it has ended."""
        self.log.info("Job %s is in the way; waiting for its end before submitting.", job_id)
        other = self._track(job_id, table_id, owned=False)
        if self._can_defer:
            self._defer(other, "execute_after_other", began=self._began, waited_for=job_id)
        event = self.wait_on_worker(other)
        if event["state"] == TIMEOUT:
            raise log_failure(self.log, wait_timeout(job_id))
        if self._killed:
            raise AirflowException("The task was ended while it waited for another job; it submitted none.")
        return job_id if event["state"] in TERMINAL_STATES else None

    def _track(
        self,
        job_id: str,
        table_id: list[str],
        *,
        owned: bool = True,
        created_ms: int | None = None,
        version: int | None = None,
    ) -> Submitted:
        """A job to wait for, with the deadline that ``timeout`` gives it."""
        limit = self.timeout if self.timeout is not None else self.execution_timeout
        seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
        began = created_ms / 1000 if created_ms else self._began or time.time()
        deadline = began + seconds if seconds is not None else None
        return Submitted(job_id, table_id, self.job_type, owned, deadline, version)

    # Waiting

    @property
    def _can_defer(self) -> bool:
        return self.deferrable and self.hook.speaks_rest

    def _follow(self, context: Context, submitted: Submitted, rejoined: Job | None = None) -> JobResult:
        """Publish the job and wait for its end, as far as there is a job and the task is to wait."""
        if not submitted.job_id:
            return self._succeed(context, submitted)
        self._submitted = submitted
        if self._killed:  # the kill came before the job's id was known
            self.on_kill()
            raise AirflowException(f"The task was ended while it submitted job {submitted.job_id}.")
        self._publish_job(context, submitted, rejoined)
        if not self.wait_for_completion:
            mark_concluded(context)
            self.publish(context, submitted.table_id, job_id=submitted.job_id)
            return self.describe_result(submitted, (rejoined.state if rejoined else JobState.QUEUED).value, None)
        if rejoined is not None and rejoined.state.terminal:
            return self._finish(context, submitted, ended_event(rejoined))
        return self._wait(context, submitted)

    def _publish_job(self, context: Context, submitted: Submitted, job: Job | None) -> None:
        """Push the job's id, link and assets before the first wait, so that a running task already shows them."""
        ti = context["ti"]
        ti.xcom_push(key="job_id", value=submitted.job_id)
        link = self._link = self.hook.job_link(submitted.job_id, job)
        LanceJobLink().push(context, link)
        uris = outlet_uris(self, self.hook, submitted.table_id)
        ti.xcom_push(key="asset", value={"table_id": submitted.table_id, "uris": uris})
        self.log.info("Job %s%s", submitted.job_id, f": {link}" if link else "")

    def _wait(self, context: Context, submitted: Submitted) -> JobResult:
        """Wait for the job's end, here or in the triggerer. Most small jobs end before the task defers."""
        try:
            event = self._watch(submitted) if self._can_defer else self.wait_on_worker(submitted)
        except AirflowTaskTimeout:  # Airflow's own execution_timeout
            if submitted.owned:
                self._cancel_job(context, submitted)
            raise
        if event is None:
            self._defer(submitted, "execute_complete", submitted=submitted._asdict())
        return self._finish(context, submitted, event)

    def _watch(self, job: Submitted) -> JobEvent | None:
        """The end of a job that ends within ``[lance] defer_after`` seconds."""
        return watch_job(
            self.hook,
            job.job_id,
            self.log,
            seconds=read_configuration().defer_after,
            deadline=job.deadline,
            poll_interval=self.poll_interval,
        )

    def wait_on_worker(self, job: Submitted) -> JobEvent:
        """Wait for the end of a job, or for its deadline, without deferring."""
        return wait_for_job(self.hook, job.job_id, self.log, deadline=job.deadline, poll_interval=self.poll_interval)

    def _defer(self, job: Submitted, method_name: str, **kwargs: object) -> NoReturn:
        from airflow_provider_lance.triggers.job import LanceJobTrigger

        trigger = LanceJobTrigger(
            job_id=job.job_id,
            lance_conn_id=self.lance_conn_id,
            deadline=job.deadline,
            poll_interval=self.poll_interval,
            cancel_on_kill=self.cancel_on_kill and job.owned,
        )
        self.defer(trigger=trigger, method_name=method_name, kwargs=kwargs)

    # Ending

    def _finish(self, context: Context, submitted: Submitted, event: JobEvent) -> JobResult:
        """Return the result of a job that is DONE, and raise the failure of any other event."""
        event = recheck_timeout(self.hook, event)
        if event["state"] == JobState.DONE.value:
            return self._succeed(context, submitted, event.get("result"))
        if event["state"] == TIMEOUT and submitted.owned:
            self._cancel_job(context, submitted)
        if event["state"] == JobState.CANCELLED.value and self._killed:
            # A plain AirflowException: the person who ended the task decides about its next try, not the job.
            raise AirflowException(f"Job {submitted.job_id} was cancelled, because its task was ended.")
        link = self._link or self.hook.resolved.link(submitted.job_id)
        # The server is not asked for a link after these two events, because it may not answer.
        if link is None and event["state"] not in {TIMEOUT, LOST}:
            link = self.hook.job_link(submitted.job_id)
        failure = log_failure(self.log, job_failure(event, self.target(submitted.table_id), link))
        log_traceback(self.log, event)
        raise failure

    def _succeed(self, context: Context, submitted: Submitted, result: JsonObject | None = None) -> JobResult:
        mark_concluded(context)
        warn_of_failed_rows(self.log, result)
        if submitted.job_id:
            self.log.info("%s", job_summary(self.target(submitted.table_id), submitted.job_id, result))
        else:
            self.log.info("%s: version %s, without a job.", self.target(submitted.table_id), submitted.version)
        if self.skip_if_unchanged and result is not None and self.did_nothing(result):
            raise AirflowSkipException(f"Job {submitted.job_id} found nothing to do: {result}")
        described = self.describe_result(submitted, JobState.DONE.value, result)
        self.publish(
            context,
            submitted.table_id,
            version=described["version"],
            job_id=submitted.job_id or None,
            rows=written_rows(result),
        )
        return described

    def describe_result(self, submitted: Submitted, state: str, result: JsonObject | None) -> JobResult:
        """The dict that the task returns."""
        return job_result(
            submitted.job_id or None, submitted.job_type, submitted.table_id, state, result, version=submitted.version
        )

    def _cancel_job(self, context: Context, submitted: Submitted) -> None:
        """Cancel the job, and take it out of the state store so that the next try does not rejoin it."""
        try:
            cancel_and_wait(self.hook, submitted.job_id)
        except (WireError, AirflowException) as error:
            self.log.warning("The job could not be cancelled: %s", error)
        discard_job(context)

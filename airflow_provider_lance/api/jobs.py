"""Jobs on the wire: the spec that a driver receives, the progress, the result and the failure.

The server writes these shapes, the engine reads its spec from them, and clients read the jobs of any server with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.job_states import JobState, JobType, parse_state
from airflow_provider_lance.api.plain_data import JsonMapping, JsonObject
from airflow_provider_lance.api.requester import Requester

_MOST_TRACEBACK = 4000
_MOST_EXAMPLES = 20


@dataclass(frozen=True)
class JobFailure:
    """Why a job failed, and whether the same request may succeed later.

    ``traceback`` has the frames of the user's function that raised. ``rows_failed`` is the number of rows that failed,
    and ``failed_rows`` has examples of them. Empty fields are left out on the wire.
    """

    phase: str
    message: str
    retryable: bool = False
    traceback: str = ""
    rows_failed: int = 0
    failed_rows: tuple[JsonObject, ...] = ()

    def to_dict(self) -> JsonObject:
        more = {"traceback": self.traceback, "rows_failed": self.rows_failed, "failed_rows": list(self.failed_rows)}
        known = {"phase": self.phase, "message": self.message, "retryable": self.retryable}
        return known | {key: value for key, value in more.items() if value}

    @classmethod
    def from_dict(cls, data: JsonMapping | None) -> JobFailure | None:
        if not data:
            return None
        return cls(
            phase=str(data.get("phase") or "unknown"),
            message=str(data.get("message") or "the server gave no message"),
            retryable=bool(data.get("retryable", False)),
            traceback=str(data.get("traceback") or "")[:_MOST_TRACEBACK],
            rows_failed=_whole(data.get("rows_failed")),
            failed_rows=_examples(data.get("failed_rows")),
        )


def failure_sentence(job_id: str, message: str | None, target: str = "", *, cancelled: bool = False) -> str:
    """Why a job is not DONE, as its page, the log of its task and the command line say it.

    >>> failure_sentence("7c0e", "division by zero", "articles.ratio")
    'articles.ratio: division by zero (job 7c0e)'

    :param job_id: The job's id.
    :param message: The message of the job's failure. Only its first line is used.
    :param target: What the job writes. It is not repeated where the message begins with it.
    :param cancelled: Whether the job was cancelled. ``message`` is then the reason of that, if there was one.
    """
    reason = (message or "").strip().partition("\n")[0]
    if cancelled:
        reason = f"The job was cancelled. {reason}".strip()
    reason = reason or "The server gave no reason."
    return f"{reason if not target or reason.startswith(target) else f'{target}: {reason}'} (job {job_id})"


def result_text(result: Mapping[str, object] | None) -> str:
    """What a job that is DONE wrote, or planned to write: ``1,000 rows computed, 3 failed, version 7``."""
    if not result:
        return ""
    plan = result.get("plan")
    if isinstance(plan, Mapping):
        return _plan_text(plan, result)
    sample = result.get("sample")
    if isinstance(sample, Mapping):
        return _sample_text(sample, result)
    mode = str(result.get("mode") or "")
    if mode == "no_op":
        return "nothing to do"
    parts = []
    for key, verb in (("rows_assigned", "computed"), ("rows_written", "written"), ("rows_deleted", "deleted")):
        rows = result.get(key)
        if isinstance(rows, int) and (rows or key != "rows_deleted"):
            parts.append(f"{counted(rows, 'row')} {verb}")
    failed = result.get("rows_failed")
    if isinstance(failed, int) and failed:
        parts.append(f"{failed:,} failed")
    version = result.get("published_version", result.get("version"))
    if version is not None:
        parts.append(f"version {version}")
    if mode:
        keys, technique = result.get("keys"), result.get("technique")
        how = f" ({counted(keys, 'affected key')})" if isinstance(keys, int) and mode != "rebuild" else ""
        if not how and isinstance(technique, str) and mode != "rebuild":
            how = f" ({technique})"
        parts.append(f"by {'a rebuild' if mode == 'rebuild' else f'an {mode} refresh'}{how}")
    return ", ".join(parts)


def _plan_text(plan: Mapping[str, object], result: Mapping[str, object]) -> str:
    source_rows, rows = plan.get("source_rows"), plan.get("rows")
    if isinstance(source_rows, int):
        if result.get("mode") == "refused":
            return f"would fail: {result.get('reason')}"
        work = "rebuild the view from" if result.get("mode") == "rebuild" else "apply the changes of"
        reason = f" ({result['reason']})" if result.get("reason") else ""
        return f"would {work} {counted(source_rows, 'source row')}{reason}{_follows_text(plan.get('follows'))}"
    numbers = [(plan.get(key), noun) for key, noun in (("fragments", "fragment"), ("tasks", "task"))]
    inside = ", ".join(counted(number, noun) for number, noun in numbers if isinstance(number, int))
    return f"would compute {counted(rows if isinstance(rows, int) else 0, 'row')}" + (f" in {inside}" if inside else "")


def _follows_text(follows: object) -> str:
    """How a view follows each of its sources: ``; a change of orders: affected keys (shop)``."""
    texts = []
    for name, prospect in follows.items() if isinstance(follows, Mapping) else ():
        if isinstance(prospect, Mapping):
            key = prospect.get("key")
            how = f" ({', '.join(map(str, key))})" if isinstance(key, list) else ""
            what = f"{prospect['technique']}{how}" if "technique" in prospect else f"rebuild, {prospect.get('reason')}"
            texts.append(f"; a change of {name}: {what}")
    return "".join(texts)


def _sample_text(sample: Mapping[str, object], result: Mapping[str, object]) -> str:
    rows, per_row, setup = sample.get("rows"), sample.get("seconds_per_row"), sample.get("setup_seconds")
    tried = counted(len(rows) if isinstance(rows, list) else 0, "row")
    estimate = f"; a backfill would take about {result.get('estimated_seconds')} s"
    return f"{tried} tried, {sample.get('rows_failed')} failed, {per_row} s a row after {setup} s of setup{estimate}"


def counted(number: int, noun: str) -> str:
    """``1 row`` or ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _examples(value: object) -> tuple[JsonObject, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(dict(row) for row in value[:_MOST_EXAMPLES] if isinstance(row, Mapping))


@dataclass(frozen=True)
class Job:
    """A job as a client reads it from any server, in any dialect."""

    job_id: str
    state: JobState
    job_type: str = ""
    table: str | None = None
    created_ms: int | None = None
    spec: JsonObject = field(default_factory=dict)
    result: JsonObject | None = None
    failure: JobFailure | None = None
    progress: Progress | None = None
    cancelling: bool = False
    requester: Requester | None = None
    start_path: str = ""  # how its driver began: cold, standby or reused; empty where that is not known
    claimed_ms: int | None = None
    page: str | None = None  # the path of the job's page below the server's address, if there is one

    @classmethod
    def from_wire(cls, body: JsonMapping, job_id: str | None = None) -> Job:
        """Read a row of ``jobs/list``, a ``jobs/describe`` body, or a transaction's description."""
        spec = body.get("spec")
        result = body.get("result")
        progress = body.get("progress")
        return cls(
            job_id=str(body.get("job_id") or job_id or ""),
            state=parse_state(body.get("job_state") or body.get("state") or body.get("status")),
            job_type=str(body.get("job_type") or ""),
            table=body.get("table"),
            created_ms=body.get("creation_ms") or body.get("created_at_millis"),
            spec=dict(spec) if isinstance(spec, Mapping) else {},
            result=dict(result) if isinstance(result, Mapping) else None,
            failure=JobFailure.from_dict(body.get("failure")),
            progress=Progress.from_dict(progress) if isinstance(progress, Mapping) else None,
            cancelling=bool(body.get("cancel_requested")),
            requester=Requester.from_dict(body.get("requester")),
            start_path=str(body.get("start_path") or ""),
            claimed_ms=_whole(body.get("claimed_ms")) or None,
            page=page if isinstance(page := body.get("page"), str) else None,
        )

    @property
    def column(self) -> str:
        """The column that the job fills; empty for a view."""
        column = self.spec.get("column")
        return column if isinstance(column, str) else ""

    @property
    def target(self) -> str:
        """What the job writes: ``articles.embedding``, or a view's name."""
        table_id = self.spec.get("table_id")
        table = join_id(table_id) if isinstance(table_id, list) else self.table or ""
        return f"{table}.{self.column}" if self.column else table

    @property
    def start_text(self) -> str:
        """How the job's driver began, and how long the job waited for it: ``reused, after 0.1 s``."""
        if not self.start_path or self.claimed_ms is None or self.created_ms is None:
            return self.start_path
        return f"{self.start_path}, after {max(0, self.claimed_ms - self.created_ms) / 1000:.1f} s"

    @property
    def failure_sentence(self) -> str:
        """Why the job is not DONE, as its page, the log of its task and the command line say it."""
        message = self.failure.message if self.failure is not None else None
        return failure_sentence(self.job_id, message, self.target, cancelled=self.state is JobState.CANCELLED)


@dataclass(frozen=True)
class JobSpec:
    """Everything that a driver needs to execute a job, except for credentials, which it gets when it claims the job.

    ``request`` is the body of AlterTableBackfillColumns, RefreshMaterializedView or WriteTable as it was accepted,
    without ``id``, ``identity`` and ``context``. ``options`` are the context entries about execution (``plan``,
    ``max_failed_rows``). ``location`` is the storage URI of the table or view. ``managed`` says that commits must use
    the namespace's CreateTableVersion. ``tables`` maps the joined ids of the tables that a query may read to their
    locations.
    ``write_key`` is the key that the commit of a write carries, the job's id by default. A commit with this key is
    looked for in the versions after ``write_after`` before anything is written.
    ``on_spark`` says that Spark computes the rows however few they are, so that its driver can start Spark at once.
    ``secrets`` has the ids of secrets, never their values, by the environment variables of the job's function.
    """

    job_type: str
    table_id: list[str]
    location: str
    request: JsonObject = field(default_factory=dict)
    options: JsonObject = field(default_factory=dict)
    managed: bool = False
    tables: dict[str, str] = field(default_factory=dict)
    write_key: str = ""
    write_after: int = 0
    on_spark: bool = False
    secrets: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> JsonObject:
        return {name: value for name, value in asdict(self).items() if name != "secrets" or value}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> JobSpec:
        known = cls.__dataclass_fields__
        return cls(**{key: value for key, value in data.items() if key in known})

    @classmethod
    def read(cls, document: object) -> JobSpec:
        """A spec that a person wrote, to be run without a server; ``ValueError`` with a sentence if it is wrong.

        Without a ``table_id`` the last part of the location names the table. A ``job_id`` is allowed and not read.
        """
        if not isinstance(document, Mapping):
            raise ValueError(f"A job spec is a JSON object, not {type(document).__name__}.")
        if "storage_options" in document:
            raise ValueError("Credentials do not belong into a job spec: it is shown and logged.")
        known = cls.__dataclass_fields__
        for name in document:
            if name not in known and name != "job_id":
                raise ValueError(f"A job spec has no field {name!r}; it has {', '.join(known)}.")
        types = [kind.value for kind in JobType]
        if document.get("job_type") not in types:
            known_types = f"{', '.join(types[:-1])} or {types[-1]}"
            raise ValueError(f"The spec's job_type is {document.get('job_type')!r}; it must be {known_types}.")
        location = document.get("location")
        if not isinstance(location, str) or not location.strip():
            raise ValueError(f"The spec's location is {location!r}; it must be the path or URI of the table or view.")
        for name in ("request", "options", "tables", "secrets"):
            if not isinstance(document.get(name, {}), Mapping):
                raise ValueError(f"The spec's {name} is {document[name]!r}; it must be an object.")
        table_id = document.get("table_id") or [location.rstrip("/").rpartition("/")[2].removesuffix(".lance")]
        if not isinstance(table_id, list | tuple) or not all(isinstance(part, str) and part for part in table_id):
            raise ValueError(f"The spec's table_id is {table_id!r}; it must be a list of names.")
        if document.get("managed"):
            raise ValueError("A table whose versions its namespace manages cannot be written without that namespace.")
        return cls.from_dict({**document, "location": location, "table_id": list(table_id)})


@dataclass(frozen=True)
class Progress:
    """How far a job is. Zero totals mean "not known yet".

    ``compute_seconds`` is the time since the first task was started: without planning and without starting Spark.
    """

    phase: str = "starting"
    fragments_done: int = 0
    fragments_total: int = 0
    rows_done: int = 0
    rows_total: int = 0
    rows_failed: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    rows_per_second: float = 0.0
    compute_seconds: float = 0.0

    def to_dict(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: JsonMapping | None) -> Progress:
        known = cls.__dataclass_fields__
        return cls(**{key: value for key, value in (data or {}).items() if key in known and value is not None})

    @property
    def fraction(self) -> float:
        """Between 0 and 1, by rows where they are known, else by fragments."""
        if self.rows_total:
            return min(1.0, self.rows_done / self.rows_total)
        if self.fragments_total:
            return min(1.0, self.fragments_done / self.fragments_total)
        return 0.0

    def describe(self) -> str:
        """One line for a log: ``compute: fragments 12/64, rows 1,500,000/8,000,000, 3.1 M rows/s``."""
        parts = []
        if self.fragments_total:
            parts.append(f"fragments {self.fragments_done}/{self.fragments_total}")
        if self.rows_total or self.rows_done:
            total = f"/{self.rows_total:,}" if self.rows_total else ""
            parts.append(f"rows {self.rows_done:,}{total}")
        if self.rows_per_second:
            parts.append(f"{_human(self.rows_per_second)} rows/s")
        if self.rows_failed:
            parts.append(f"{self.rows_failed:,} failed")
        return f"{self.phase}: {', '.join(parts)}" if parts else self.phase


def _human(number: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.1f} {unit}"
    return f"{number:.0f}"

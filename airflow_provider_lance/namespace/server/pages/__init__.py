"""The pages at ``/ui``: a list of jobs and a page for each job, in plain HTML and JavaScript without a build step.

The files are public and hold no data. The JSON that they show needs the scope ``read``.
"""

from __future__ import annotations

import html
import json
from collections.abc import Awaitable, Callable, Iterator
from importlib.resources import files
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, TransactionNotFoundError
from starlette.requests import Request
from starlette.responses import Response

from airflow_provider_lance import __version__
from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.api.models import ListJobsRequest
from airflow_provider_lance.api.operations import Scope
from airflow_provider_lance.api.plain_data import JsonObject

if TYPE_CHECKING:
    from airflow_provider_lance.namespace.server.app import Server

Page = Callable[[Request], Awaitable[Response]]

_TITLES = {"jobs": "Lance jobs", "job": "Lance job"}
_HEADERS = {
    # A page loads our own files and asks our own server only, also where a job's text has HTML in it.
    "content-security-policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_MOST_LOG = 4 << 20


def page_routes(server: Server, base_path: str) -> Iterator[tuple[str, str, Page]]:
    """``(path, name, answer)`` of every page, and of the data that the pages show."""
    yield "/ui", "ui", _page("jobs", base_path)
    yield "/ui/jobs/{job_id}", "ui_job", _page("job", base_path)
    yield "/ui/static/pages.js", "ui_static", _static("pages.js", "text/javascript")
    yield "/ui/static/pages.css", "ui_static", _static("pages.css", "text/css")

    async def jobs(request: Request) -> Response:
        await server.require(request, Scope.READ)
        return _json(await server.ask_registry(_jobs, server, dict(request.query_params)))

    async def job(request: Request) -> Response:
        await server.require(request, Scope.READ)
        return _json(await server.ask_registry(_job, server, request.path_params["job_id"]))

    async def log(request: Request) -> Response:
        await server.require(request, Scope.READ)
        text = await server.ask_registry(_log, server, request.path_params["job_id"], dict(request.query_params))
        return Response(text.encode(), media_type="text/plain; charset=utf-8", headers=_HEADERS)

    yield "/ui/data/jobs", "ui_data", jobs
    yield "/ui/data/jobs/{job_id}", "ui_data", job
    yield "/v1/jobs/{job_id}/log", "job_log", log


def _page(name: str, base_path: str) -> Page:
    """The content of a page in the frame that all pages share."""
    content = _text("frame.html").replace("{content}", _text(f"{name}.html")).replace("{login}", _text("login.html"))
    content = content.replace("{title}", _TITLES[name]).replace("{page}", name)
    return _fixed(content.replace("{base}", html.escape(base_path)), "text/html")


def _static(name: str, kind: str) -> Page:
    return _fixed(_text(name), kind)


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text()


def _fixed(content: str, kind: str) -> Page:
    async def answer(_request: Request) -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=_HEADERS)

    return answer


def _json(value: object) -> Response:
    return Response(json.dumps(value), media_type="application/json", headers=_HEADERS)


def _jobs(server: Server, query: dict[str, str]) -> JsonObject:
    wanted = ListJobsRequest(
        limit=100,
        # A list by state has whole descriptions, with the progress of each job.
        state=[query["state"]] if query.get("state") else [state.value for state in JobState],
        table=query.get("table") or None,
        page_token=query.get("page_token") or None,
    )
    return {
        **server.jobs.list_jobs(wanted).to_dict(),
        "counts": server.jobs.registry.counts(),
        "version": __version__,
        "airflow_url": server.jobs.config.airflow.url,
    }


def _job(server: Server, job_id: str) -> JsonObject:
    """One job with everything that its page shows. A person who reads the page does not renew a waiter's lease."""
    from airflow_provider_lance.namespace.jobs.service import describe

    row = server.jobs.find(job_id)
    if row is None:
        raise TransactionNotFoundError(f"There is no job {job_id[:100]!r}.")
    body = describe(row)
    return {
        "job": body,
        "sentence": Job.from_wire(body).failure_sentence if row.failure else None,
        "samples": row.samples or [],
        "events": server.jobs.registry.history(row.job_id, 200, newest=True),
        "log": server.jobs.launcher.logs.tail(row.job_id, most_bytes=32 << 10),
        "airflow_url": server.jobs.config.airflow.url,
        "log_attempts": server.jobs.launcher.logs.attempts(row.job_id),
    }


def _log(server: Server, job_id: str, query: dict[str, str]) -> str:
    row = server.jobs.find(job_id)
    if row is None:
        raise TransactionNotFoundError(f"There is no job {job_id[:100]!r}.")
    numbers = {}
    for name in ("attempt", "bytes"):
        text = query.get(name, "")
        if text and not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise InvalidInputError(f"The query's `{name}` must be a whole number.")
        numbers[name] = int(text) if text else None
    size = min(numbers["bytes"] or 64 << 10, _MOST_LOG)
    return server.jobs.launcher.logs.tail(row.job_id, numbers["attempt"], size)

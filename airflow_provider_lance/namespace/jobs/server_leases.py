"""The servers that share a registry: each keeps a lease, and takes over the jobs of one whose lease has ended."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, func, insert, select, update

from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.namespace.jobs.database import Database, jobs, now_ms, servers
from airflow_provider_lance.namespace.jobs.registry import LIVE, JobRow, Stage, Timings, add_event, update_job


class Servers:
    """The servers of a registry, for one of them (``server_id``)."""

    def __init__(self, database: Database, server_id: str, timings: Timings) -> None:
        self.database = database
        self.server_id = server_id
        self.timings = timings

    def register(self, host: str, process: Mapping[str, object], url: str | None) -> None:
        now = now_ms()
        lease_until = now + int(self.timings.server_lease * 1000)
        with self.database.writing() as connection:
            # Servers that ended a week ago have no jobs any more.
            week = now - 7 * 24 * 3600 * 1000
            connection.execute(delete(servers).where(servers.c.lease_until_ms < week))
            connection.execute(
                insert(servers).values(
                    server_id=self.server_id,
                    host=host,
                    process=dict(process),
                    url=url,
                    started_ms=now,
                    lease_until_ms=lease_until,
                )
            )

    def renew(self) -> None:
        lease_until = now_ms() + int(self.timings.server_lease * 1000)
        with self.database.writing() as connection:
            connection.execute(
                update(servers)
                .where(servers.c.server_id == self.server_id)
                .values(lease_until_ms=lease_until, stopped=False)
            )

    def stop(self) -> None:
        with self.database.writing() as connection:
            connection.execute(update(servers).where(servers.c.server_id == self.server_id).values(stopped=True))

    def orphans(self) -> list[JobRow]:
        """The launched and claimed jobs of other servers, with what is known of those servers."""
        query = (
            select(
                jobs,
                servers.c.host.label("server_host"),
                servers.c.process.label("server_process"),
                func.coalesce(servers.c.stopped, True).label("server_stopped"),
                func.coalesce(servers.c.lease_until_ms, 0).label("server_lease_until_ms"),
            )
            .select_from(jobs.outerjoin(servers, jobs.c.server_id == servers.c.server_id))
            .where(
                jobs.c.state.in_(LIVE),
                jobs.c.stage.in_([Stage.LAUNCHED.value, Stage.CLAIMED.value]),
                jobs.c.server_id.is_not(None),
                jobs.c.server_id != self.server_id,
            )
        )
        with self.database.reading() as connection:
            return list(connection.execute(query))

    def adopt(self, row: JobRow) -> bool:
        """Make another server's job one of this server; of several servers that try, one succeeds."""
        unchanged = [
            jobs.c.job_id == row.job_id,
            jobs.c.attempt == row.attempt,
            jobs.c.server_id == row.server_id,
            jobs.c.state.in_(LIVE),
        ]
        with self.database.writing() as connection:
            adopted = update_job(connection, unchanged, server_id=self.server_id)
            if adopted:
                add_event(connection, row.job_id, JobState(row.state), "Taken over from a server that is gone")
            return adopted

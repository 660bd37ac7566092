"""Metrics for Prometheus in its text format: requests and their latencies, jobs by state, drivers."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping

from airflow_provider_lance.namespace.histogram import Histogram


class Metrics:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, int], int] = defaultdict(int)
        self._seconds = Histogram("lance_request_seconds", "Time from a request's arrival to its answer.", "operation")
        self.in_flight = 0

    def observe(self, operation: str, status: int, seconds: float) -> None:
        self._seconds.observe(operation, seconds)
        with self._lock:
            self._requests[operation, status] += 1

    def render(self, jobs: Mapping[str, int] | None, drivers: int, waiting: int = 0) -> str:
        """The text of a scrape; ``jobs`` is None while the registry does not answer."""
        lines = ["# HELP lance_requests_total Requests answered.", "# TYPE lance_requests_total counter"]
        with self._lock:
            requests = sorted(self._requests.items())
        lines += [
            f'lance_requests_total{{operation="{name}",status="{status}"}} {count}'
            for (name, status), count in requests
        ]
        lines += self._seconds.lines()
        lines += ["# HELP lance_requests_in_flight Requests being answered.", "# TYPE lance_requests_in_flight gauge"]
        lines.append(f"lance_requests_in_flight {self.in_flight}")
        lines += ["# HELP lance_jobs Jobs in the registry by state.", "# TYPE lance_jobs gauge"]
        lines += [f'lance_jobs{{state="{state}"}} {count}' for state, count in sorted((jobs or {}).items())]
        lines += ["# HELP lance_registry_up Whether the registry answered.", "# TYPE lance_registry_up gauge"]
        lines.append(f"lance_registry_up {int(jobs is not None)}")
        lines += ["# HELP lance_drivers Drivers of this server with a job.", "# TYPE lance_drivers gauge"]
        lines.append(f"lance_drivers {drivers}")
        lines += ["# HELP lance_drivers_waiting Drivers that wait for a job.", "# TYPE lance_drivers_waiting gauge"]
        lines.append(f"lance_drivers_waiting {waiting}")
        return "\n".join(lines) + "\n"

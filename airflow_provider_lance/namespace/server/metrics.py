"""Metrics for Prometheus in its text format: request counts and latencies, jobs by state, drivers.

There is one counter and one histogram, for which a client library with its global registry would be too much.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class Metrics:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, int], int] = defaultdict(int)
        self._buckets: dict[str, list[int]] = defaultdict(lambda: [0] * (len(_BUCKETS) + 1))
        self._seconds: dict[str, float] = defaultdict(float)
        self.in_flight = 0

    def observe(self, operation: str, status: int, seconds: float) -> None:
        place = next((index for index, bound in enumerate(_BUCKETS) if seconds <= bound), len(_BUCKETS))
        with self._lock:
            self._requests[operation, status] += 1
            self._buckets[operation][place] += 1
            self._seconds[operation] += seconds

    def render(self, jobs: Mapping[str, int] | None, drivers: int, waiting: int = 0) -> str:
        """The text of a scrape; ``jobs`` is None while the registry does not answer."""
        lines = ["# HELP lance_requests_total Requests answered.", "# TYPE lance_requests_total counter"]
        with self._lock:
            requests = sorted(self._requests.items())
            buckets = {name: list(counts) for name, counts in sorted(self._buckets.items())}
            seconds = dict(self._seconds)
        lines += [
            f'lance_requests_total{{operation="{name}",status="{status}"}} {count}'
            for (name, status), count in requests
        ]
        lines += [
            "# HELP lance_request_seconds Time from a request's arrival to its answer.",
            "# TYPE lance_request_seconds histogram",
        ]
        for name, counts in buckets.items():
            total = 0
            for bound, count in zip((*_BUCKETS, float("inf")), counts, strict=True):
                total += count
                edge = "+Inf" if bound == float("inf") else f"{bound:g}"
                lines.append(f'lance_request_seconds_bucket{{operation="{name}",le="{edge}"}} {total}')
            lines.append(f'lance_request_seconds_sum{{operation="{name}"}} {seconds[name]:.6f}')
            lines.append(f'lance_request_seconds_count{{operation="{name}"}} {total}')
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

"""A histogram with one label, as Prometheus reads it. A client library with its global registry would be too much."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class Histogram:
    """Counts seconds in buckets, for each value of ``label``. Threads may share it."""

    def __init__(self, name: str, meaning: str, label: str, buckets: Sequence[float] = _BUCKETS) -> None:
        self._name, self._meaning, self._label = name, meaning, label
        self._edges = tuple(buckets)
        self._lock = threading.Lock()
        self._counts: dict[str, list[int]] = defaultdict(lambda: [0] * (len(self._edges) + 1))
        self._seconds: dict[str, float] = defaultdict(float)

    def observe(self, value: str, seconds: float) -> None:
        place = next((index for index, edge in enumerate(self._edges) if seconds <= edge), len(self._edges))
        with self._lock:
            self._counts[value][place] += 1
            self._seconds[value] += seconds

    def lines(self) -> list[str]:
        """The lines of a scrape."""
        with self._lock:
            found = {value: list(counts) for value, counts in sorted(self._counts.items())}
            seconds = dict(self._seconds)
        lines = [f"# HELP {self._name} {self._meaning}", f"# TYPE {self._name} histogram"]
        for value, counts in found.items():
            label, total = f'{self._label}="{value}"', 0
            for edge, count in zip((*self._edges, float("inf")), counts, strict=True):
                total += count
                bound = "+Inf" if edge == float("inf") else f"{edge:g}"
                lines.append(f'{self._name}_bucket{{{label},le="{bound}"}} {total}')
            lines.append(f"{self._name}_sum{{{label}}} {seconds[value]:.6f}")
            lines.append(f"{self._name}_count{{{label}}} {total}")
        return lines

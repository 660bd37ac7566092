"""Which way of a refresh is the cheaper one.

A rebuild is expected to take the seconds of the last one, times the growth of the sources since then. How many rows a
refresh by key reads is known exactly before it begins, so its time is a sum of measured rates: 2 cores, local disk, a
warm session. Where no rebuild was timed, up to a tenth of the rows is read by key.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_lance.storage.view_state import Rebuilt

#: Seconds of Spark and of the commits, however little there is to do.
START_SECONDS = 0.3
#: Seconds to read and compare a million values of a key column.
SECONDS_PER_MILLION_KEYS = 0.06
#: Seconds to move a row into Spark and its result out of it.
SECONDS_PER_ROW = 4e-6
#: Without a timed rebuild, the share of rows up to which reading by key pays.
SHARE_WITHOUT_HISTORY = 0.1


@dataclass(frozen=True)
class Estimate:
    """The expected seconds of both ways; ``rebuild`` is None where no rebuild was timed."""

    incremental: float
    rebuild: float | None
    share: float

    @classmethod
    def of(cls, *, rows_read: int, source_rows: int, keys_compared: int, rebuilt: Rebuilt | None) -> Estimate:
        """``keys_compared`` is how many values of key columns are read, in the sources and in the view."""
        seconds = START_SECONDS + SECONDS_PER_MILLION_KEYS * keys_compared / 1e6 + SECONDS_PER_ROW * rows_read
        share = rows_read / source_rows if source_rows else 0.0
        rebuild = None
        if rebuilt is not None and rebuilt.source_rows:
            rebuild = rebuilt.seconds * max(source_rows / rebuilt.source_rows, 0.1)
        return cls(seconds, rebuild, share)

    @property
    def rebuild_is_cheaper(self) -> bool:
        if self.rebuild is None:
            return self.share > SHARE_WITHOUT_HISTORY
        return self.incremental > self.rebuild

    def to_dict(self) -> dict[str, float]:
        seconds = {"incremental": round(self.incremental, 3)}
        return seconds if self.rebuild is None else {**seconds, "rebuild": round(self.rebuild, 3)}

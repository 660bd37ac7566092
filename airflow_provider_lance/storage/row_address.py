"""Row addresses of Lance: the fragment's id is in the upper 32 bits, the row's offset in the fragment in the lower."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_OFFSET_BITS = 32


def row_address(fragment_id: int, offset: int = 0) -> int:
    """The address of a fragment's physical row."""
    return (fragment_id << _OFFSET_BITS) + offset


def fragment_ids(addresses: np.ndarray) -> np.ndarray:
    """The fragment of each row address."""
    import numpy as np

    return addresses >> np.uint64(_OFFSET_BITS)


def row_offsets(addresses: np.ndarray) -> np.ndarray:
    """The physical row, counted within its fragment, of each row address."""
    import numpy as np

    return (addresses & np.uint64((1 << _OFFSET_BITS) - 1)).astype(np.int64)

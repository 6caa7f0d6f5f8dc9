"""Sets of small numbers as Python ints: union and intersection are single operations."""

from __future__ import annotations

import numpy as np


def members(bits: int) -> list[int]:
    """The numbers in the set, ascending."""
    if bits.bit_count() == 1:
        return [bits.bit_length() - 1]
    raw = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), np.uint8)
    found: list[int] = np.flatnonzero(np.unpackbits(raw, bitorder="little")).tolist()
    return found

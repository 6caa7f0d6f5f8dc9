"""Sets of small numbers as Python ints: union and intersection are single operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def set_of(numbers: Sequence[int]) -> int:
    """The set of ``numbers``, which are not negative. Linear, where one `or` for each would copy the set each time."""
    if len(numbers) <= 1:
        return 1 << numbers[0] if numbers else 0
    flags = np.zeros(max(numbers) + 1, np.uint8)
    flags[np.fromiter(numbers, np.intp, len(numbers))] = 1
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def members(bits: int) -> list[int]:
    """The numbers in the set, ascending."""
    if bits.bit_count() == 1:
        return [bits.bit_length() - 1]
    raw = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), np.uint8)
    found: list[int] = np.flatnonzero(np.unpackbits(raw, bitorder="little")).tolist()
    return found

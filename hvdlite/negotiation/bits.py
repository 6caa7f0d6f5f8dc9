"""Sets of small numbers as Python ints: union and intersection are single operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def set_of(numbers: Sequence[int]) -> int:
    """Returns the set of non-negative ``numbers``, in linear time: adding them one by one would copy the set often."""
    if len(numbers) <= 1:
        return 1 << numbers[0] if numbers else 0
    flags = np.zeros(max(numbers) + 1, np.uint8)
    flags[np.fromiter(numbers, np.intp, len(numbers))] = 1
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def membership(sets: Sequence[int], numbers: Sequence[int]) -> list[bytes]:
    """Returns a row for each number, with a byte for each set: 1 if the number is in the set."""
    nbytes = max(numbers, default=0) // 8 + 1
    known = (1 << 8 * nbytes) - 1
    raw = b"".join((each & known).to_bytes(nbytes, "little") for each in sets)
    table = np.unpackbits(np.frombuffer(raw, np.uint8).reshape(len(sets), nbytes), axis=1, bitorder="little")
    return [column.tobytes() for column in table.T[numbers]]


def members(bits: int) -> list[int]:
    """Returns the numbers in the set, ascending."""
    if bits.bit_count() == 1:
        return [bits.bit_length() - 1]
    raw = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), np.uint8)
    found: list[int] = np.flatnonzero(np.unpackbits(raw, bitorder="little")).tolist()
    return found

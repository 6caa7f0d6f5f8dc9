"""Sizes as people write them: ``4M``, lists of them, and ranges such as ``1K:256M:*4``. Units are powers of 1024."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[KMG]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Parses a number of bytes. Raises ValueError unless ``text`` is a positive size."""
    match = _SIZE.fullmatch(text.strip())
    nbytes = int(match["number"]) * _UNITS[match["unit"].upper()] if match else 0
    if nbytes < 1:
        raise ValueError(f"{text!r} is not a size; write a positive number of bytes as in 1024, 256K or 4M.")
    return nbytes


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parses a list of sizes and ranges into bytes. Raises ValueError for anything else."""
    return tuple(nbytes for part in text.split(",") for nbytes in _expand(part))


def _expand(part: str) -> Iterator[int]:
    if ":" not in part:
        yield parse_size(part)
        return
    match part.split(":"):
        case [first, last, step] if step.startswith("*") and step[1:].isdecimal() and int(step[1:]) > 1:
            nbytes, end, factor = parse_size(first), parse_size(last), int(step[1:])
        case _:
            raise ValueError(f"{part!r} is not a range of sizes; write first:last:*factor as in 1K:256M:*4.")
    if nbytes > end:
        raise ValueError(f"the range {part!r} has no size in it; its first size is larger than its last.")
    while nbytes <= end:
        yield nbytes
        nbytes *= factor

"""Finds a circle of ranks that wait for each other (a deadlock).

Each rank of a circle waits for a name that the next rank has not submitted, and the last rank waits for the first. So
none of them can go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

_MAX_SEARCHED: Final = 32


class Wait(NamedTuple):
    """The ranks that did not submit a tensor, and the ranks that did, by their numbers in the job."""

    missing: tuple[int, ...]
    present: tuple[int, ...]


def circle_of(name_of: Mapping[Wait, str]) -> list[tuple[int, str]]:
    """Returns a circle of ranks, each with the name for which it waits, or an empty list if there is none.

    ``name_of`` has for each `Wait` one of its names. The search covers the first `_MAX_SEARCHED` of them.
    """
    waits = list(name_of)[:_MAX_SEARCHED]
    for wait in waits:
        found: list[tuple[int, str]] | None = None
        paths = deque([[wait]])
        seen = {wait}
        while paths and found is None:
            path = paths.popleft()
            for other in waits:
                if set(path[-1].missing).isdisjoint(other.present):
                    continue
                if other is wait:
                    before = [path[-1], *path[:-1]]
                    found = [
                        (min(set(last.missing).intersection(each.present)), name_of[each])
                        for last, each in zip(before, path, strict=True)
                    ]
                    break
                if other not in seen:
                    seen.add(other)
                    paths.append([*path, other])
        if found:
            first = found.index(min(found))
            return found[first:] + found[:first]
    return []


def circle_text(circle: Sequence[tuple[int, str]], places: Mapping[int, str] = MappingProxyType({})) -> str:
    """Describes a circle of waiting ranks. ``places`` has, for some ranks, the line of the program where they are."""
    following = [*circle[1:], circle[0]]
    steps = [
        f"rank {rank} for {name!r}, which rank {other} did not submit"
        + (f" (it is at {places[rank]})" if rank in places else "")
        for (rank, name), (other, _) in zip(circle, following, strict=True)
    ]
    return (
        f"ranks wait for each other: {'; '.join(steps)}. Make each of these calls on all ranks (not under "
        "'if hvd.rank() == 0:'), equally often and in the same order."
    )

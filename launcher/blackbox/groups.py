"""What the boxes of all ranks say together about each group: what it finished, what runs, and what is waited for.

A batch runs once all ranks of its group have submitted it. So if one of them has finished it, it runs on the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from hvdlite.blackbox.format import Record

from .boxes import Box

WORLD: Final = 0
_SKEW_S: Final = 1.0  # between the readings of two boxes, and between two clocks
_MOST_RANKS: Final = 1 << 20

Tensor = tuple[int, str]
"""The kind and the name of a tensor."""


@dataclass
class Member:
    """One rank of a group: the batches that it has finished, by number, and the tensors that it has in flight.

    If not all of those are known, ``knows_all`` is False. Its box is of ``at``, in seconds since the Unix epoch, when
    its own clock showed ``epoch_s``; it has no room for what ended before ``forgot_at``.
    """

    at: float
    epoch_s: float
    done: dict[int, Record] = field(default_factory=dict)
    in_flight: list[Tensor] = field(default_factory=list)
    knows_all: bool = False
    forgot_at: float = -math.inf

    @property
    def last(self) -> int:
        """The number of the last batch that it has finished, 0 for none."""
        return max(self.done, default=0)


@dataclass
class Group:
    """The ranks of the group, and those of them of which there is a box."""

    ranks: list[int]
    members: dict[int, Member]

    @cached_property
    def batches(self) -> list[tuple[int, Record]]:
        """The number of each batch that some rank has finished, and one record of it, from where all remember them."""
        first = max(map(self._first_remembered, self.members.values()), default=0)
        found = {number: record for member in self.members.values() for number, record in member.done.items()}
        last = max(found, default=0) if self._last_seen is None else self._last_seen
        return [(number, found[number]) for number in sorted(found) if first <= number <= last]

    def _first_remembered(self, member: Member) -> int:
        """The number of the first batch that ``member`` has not forgotten."""
        if member.done:
            return min(member.done)
        forgotten = [
            number
            for other in self.members.values()
            for number, record in other.done.items()
            if record.done_at - other.epoch_s < member.forgot_at + _SKEW_S
        ]
        return max(forgotten, default=-1) + 1

    @cached_property
    def waiting(self) -> list[tuple[Tensor, list[int]]]:
        """Each tensor that cannot run yet, and the ranks that have submitted it. The others surely lack it."""
        if len({member.last for member in self.members.values()}) > 1:
            return []  # a batch still runs on some ranks, and its tensors are in flight there
        found = []
        for tensor in dict.fromkeys(tensor for member in self.members.values() for tensor in member.in_flight):
            having = [rank for rank, member in self.members.items() if tensor in member.in_flight]
            others = [member.knows_all for rank, member in self.members.items() if rank not in having]
            # If nothing is known of some, they lack it only if nobody else does: something keeps it from running.
            if all(others) or not any(others):
                found.append((tensor, having))
        return found

    @cached_property
    def _last_seen(self) -> int | None:
        """The last batch by which the boxes of all ranks agree, if they were read while batches ran; else None.

        They are read one after another. So a batch that one rank lacks counts as running there only if another had
        finished it well before.
        """
        last_seen = []
        for member in self.members.values():
            following = [other for other in self.members.values() if member.last + 1 in other.done]
            ends = [other.done[member.last + 1].done_at - other.epoch_s for other in following]
            if ends and member.at - min(ends) < _SKEW_S:
                last_seen.append(member.last)
        return min(last_seen, default=None)


def groups_of(boxes: Sequence[Box], size: int) -> dict[int, Group]:
    """The groups of a job of ``size`` ranks, by number."""
    ranks: dict[int, set[int]] = {WORLD: set(range(size))}
    members: dict[int, dict[int, Member]] = {WORLD: {}}
    for box in boxes:
        records = box.contents.records()
        done: dict[int, dict[int, Record]] = {WORLD: {}}
        for record in records:
            done.setdefault(record.group, {})[record.number] = record
        forgot_at = records[0].done_at - box.epoch_s if records and records[0].position > 0 else -math.inf
        is_current = box.contents.noted_at >= max((record.done_at for record in records), default=0.0)
        noted = _noted(box.contents.note)
        for number in {*done, *noted}:
            others, count, tensors = noted.get(number, ((), 0, []))
            ranks.setdefault(number, set()).update({box.rank, *others})
            knows_all = is_current and number in noted and count == len(tensors)
            since = box.at - box.epoch_s
            in_flight = tensors if is_current else []
            member = Member(since, box.epoch_s, done.get(number, {}), in_flight, knows_all, forgot_at)
            members.setdefault(number, {})[box.rank] = member
    return {number: Group(sorted(ranks[number]), members[number]) for number in sorted(members)}


def _noted(note: Mapping[str, Any]) -> dict[int, tuple[list[int], int, list[Tensor]]]:
    """What a rank noted of each group (`hvdlite.observe.recorder`): its ranks, if not all, and what is in flight."""
    found = {}
    with suppress(AttributeError, TypeError, ValueError, OverflowError):
        for number, (ranks, count, tensors) in note.get("groups", {}).items():
            listed = [(int(kind), str(name)) for kind, name in tensors]
            found[int(number)] = [int(rank) for rank in ranks if 0 <= int(rank) < _MOST_RANKS], int(count), listed
    return found

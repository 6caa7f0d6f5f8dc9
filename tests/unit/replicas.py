"""Ranks without threads or sockets: a negotiator and the replicas of all ranks, moved by hand, message by message."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import EMPTY_GROUP, Kind, Ready, Request, Run, Tuning
from hvdlite.negotiation.negotiate import Negotiator
from hvdlite.negotiation.replica import Replica
from hvdlite.negotiation.unnamed import Unnamed
from hvdlite.negotiation.wire import decode, encode
from hvdlite.tensors.dtypes import DType, Sum


def request(name: str, /, **changes: Any) -> Request:
    """An all-reduce of three floats, with changes."""
    return Request(name, Kind.ALLREDUCE, DType.FLOAT32, (3,), Sum, 1.0, 1.0, 0, True)._replace(**changes)


def group(name: str, length: int, /, **changes: Any) -> tuple[Request, ...]:
    """The requests of tensors that are submitted as a list."""
    if not length:
        return (request(f"{name}[0]", dtype=DType.UINT8, shape=(0,), group_length=EMPTY_GROUP),)
    return tuple(request(f"{name}[{number}]", group_length=length, **changes) for number in range(length))


class InFlight(dict[str, Entry]):
    """A rank's entries by name."""

    def number(self, entry: Entry) -> bool:
        unnamed = entry.name
        assert isinstance(unnamed, Unnamed)
        del self[unnamed]
        entry.rename(unnamed.counted(), is_cacheable=False)
        return self.setdefault(entry.name, entry) is entry

    count = number


class Leaf:
    """One rank: what it has in flight, and what it was told to run."""

    def __init__(self, rank: int) -> None:
        self.in_flight = InFlight()
        self.replica = Replica(rank, self.in_flight)
        self.ran: list[tuple[str, ...]] = []
        self.batches = 0
        self.errors: dict[str, str] = {}
        self.last_rows: tuple[int, ...] = ()
        self.blank: dict[str, list[bool]] = {}  # of each run of a name: whether no rank had a value
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()

    def submit(self, *requests: Request, blank: Collection[str] = ()) -> None:
        entries = [Entry(item, None) for item in requests]
        for entry in entries:
            entry.is_blank = entry.name in blank
            assert self.in_flight.setdefault(entry.name, entry) is entry
        self.up.append(encode(self.replica.submit(entries), 0, 0))

    def take(self) -> None:
        run = decode(self.down.popleft(), 0, 0)
        assert isinstance(run, Run)
        works, mismatches = self.replica.apply(run)
        for entry, reason in mismatches:
            self._finish(entry)
            self.errors[entry.name] = reason
        for work in works:
            for entry in work.entries:
                self._finish(entry)
                self.blank.setdefault(entry.name, []).append(entry.is_blank)
            self.ran.append(tuple(entry.name for entry in work.entries))
            self.last_rows = work.rows[-1]
            self.batches += 1
            assert work.number == self.batches

    def _finish(self, entry: Entry) -> None:
        if self.in_flight.get(entry.name) is entry:  # or it stands in for what this rank did not submit
            del self.in_flight[entry.name]


class Ranks:
    """All of them. Messages stay in each rank's queues until the test moves them.

    They count from 0 here, and users know them by numbers from 10 on.
    """

    def __init__(self, size: int, capacity: int = 64, threshold: int = 1 << 20) -> None:
        self.negotiator = Negotiator(range(10, 10 + size), capacity, Tuning(threshold))
        self.leaves = [Leaf(rank) for rank in range(size)]

    def send_up(self, rank: int) -> int:
        """Delivers the oldest message of ``rank`` and returns its bytes."""
        frame = self.leaves[rank].up.popleft()
        message = decode(frame, 0, 0)
        assert isinstance(message, Ready)
        self.negotiator.receive(rank, message)
        return len(frame)

    def cut(self) -> None:
        if self.negotiator.has_agreed:
            run = self.negotiator.cut()
            for leaf in self.leaves:
                leaf.down.append(encode(run, 0, 0))

    def settle(self) -> None:
        """Delivers everything."""
        for rank, leaf in enumerate(self.leaves):
            while leaf.up:
                self.send_up(rank)
        self.cut()
        for leaf in self.leaves:
            while leaf.down:
                leaf.take()

    def step(self, *requests: Request) -> list[tuple[str, ...]]:
        """Every rank submits ``requests``; returns the batches that ran, which are the same on all ranks."""
        for leaf in self.leaves:
            leaf.ran.clear()
            leaf.submit(*requests)
        self.settle()
        assert all(leaf.ran == self.leaves[0].ran for leaf in self.leaves)
        return list(self.leaves[0].ran)

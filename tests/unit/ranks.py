"""Ranks without threads or sockets: a negotiator and the caches of all ranks, moved by hand, message by message."""

from __future__ import annotations

from collections import deque
from typing import Any

from hvdlite.negotiation.bits import members
from hvdlite.negotiation.cache import Cache
from hvdlite.negotiation.messages import EMPTY_GROUP, JOIN_NAME, Kind, Ready, Request, Run
from hvdlite.negotiation.negotiate import Negotiator
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


class Leaf:
    """One rank: what it sent and has not seen answered, and what it was told to run."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.cache = Cache()
        self.in_flight: dict[str, Request] = {}
        self.by_bit: dict[int, str] = {}
        self.ran: list[tuple[str, ...]] = []
        self.errors: dict[str, str] = {}
        self.last_rows: tuple[int, ...] = ()
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()

    def submit(self, *requests: Request) -> None:
        bits, new = 0, []
        for item in requests:
            assert item.name not in self.in_flight
            self.in_flight[item.name] = item
            known = self.cache.known.get(item.name)
            if known is not None and known.request == item:
                bits |= 1 << known.bit
                self.by_bit[known.bit] = item.name
            else:
                new.append(item)
        self.up.append(encode(Ready(self.cache.generation, bits, tuple(new)), 0, 0))

    def take(self) -> None:
        run = decode(self.down.popleft(), 0, 0)
        assert isinstance(run, Run)
        if self.cache.begin(run.generation):
            self.by_bit.clear()
        for batch in run.batches:
            names = [self._name_of(bit) for bit in members(batch.bits)] if batch.bits else []
            for response in batch.responses:
                if response.error and not response.fails(self.rank):
                    continue
                self.by_bit.pop(self.cache.bit_of_name(response.name), None)
                asked = self.in_flight.pop(response.name, response.request)
                assert asked is not None
                if response.error:
                    self.errors[response.name] = response.error
                    continue
                if response.bit >= 0:
                    self.cache.remember(response.bit, asked, response.rows)
                self.last_rows = response.rows
                names.append(response.name)
            if names:
                self.ran.append(tuple(names))

    def _name_of(self, bit: int) -> str:
        """The tensor of an agreed bit; only a rank that has joined may not have submitted it."""
        name = self.by_bit.pop(bit, None)
        if name is None:
            assert JOIN_NAME in self.in_flight
            name = self.cache.by_bit[bit].request.name
        self.in_flight.pop(name, None)
        return name


class Ranks:
    """All of them. Messages stay in each rank's queues until the test moves them.

    They count from 0 here, and users know them by numbers from 10 on.
    """

    def __init__(self, size: int, capacity: int = 64, threshold: int = 1 << 20) -> None:
        self.negotiator = Negotiator(range(10, 10 + size), capacity, threshold)
        self.leaves = [Leaf(rank) for rank in range(size)]

    def send_up(self, rank: int) -> int:
        """Delivers the oldest message of ``rank`` and returns its bytes."""
        frame = self.leaves[rank].up.popleft()
        message = decode(frame, 0, 0)
        assert isinstance(message, Ready)
        self.negotiator.receive(rank, message)
        return len(frame)

    def cut(self) -> None:
        run = self.negotiator.cut()
        if run is not None:
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

"""Random programs, what the ranks of a group submit one item after the other, and groups that run them."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hvdlite.negotiation.messages import JOIN_NAME, Kind, Request
from hvdlite.tensors.dtypes import DType, Sum
from tests.unit.replicas import group, request

NAMES = "abcdefgh"
JOIN = Request(JOIN_NAME, Kind.JOIN, DType.UINT8, (), Sum, 1.0, 1.0, 0, False)


def program(chance: random.Random) -> list[tuple[Request, ...]]:
    """What one rank submits: sums of any names, since the others may have joined, and then a join."""
    names = chance.sample(NAMES, chance.randint(0, 8))
    return [*((request(name),) for name in names), (JOIN,)]


def alike(chance: random.Random, size: int) -> list[list[tuple[Request, ...]]]:
    """What ranks submit, each in an order of its own: the same names, of which some are described in different ways."""
    rounds = []
    for _ in range(chance.randint(1, 6)):
        items: list[list[tuple[Request, ...]]] = []
        for name in chance.sample(NAMES, chance.randint(1, 4)):
            shape = (chance.choice([3, 3, 3, 4]),)
            kind = chance.choice([Kind.ALLREDUCE, Kind.ALLREDUCE, Kind.ALLGATHER])
            is_wrong = chance.random() < 0.1
            items.append(
                [
                    (
                        request(
                            name,
                            shape=(chance.choice([3, 4]),) if is_wrong or kind is Kind.ALLGATHER else shape,
                            kind=kind,
                        ),
                    )
                    for _ in range(size)
                ]
            )
        if chance.random() < 0.3:
            length, is_wrong = chance.randint(1, 3), chance.random() < 0.2
            items.append([group("g", length + (chance.randint(0, 1) if is_wrong else 0)) for _ in range(size)])
        rounds.append(items)
    programs: list[list[tuple[Request, ...]]] = [[] for _ in range(size)]
    for items in rounds:
        for rank, program in enumerate(programs):
            program.extend(item[rank] for item in chance.sample(items, len(items)))
    return programs


class Moved(ABC):
    """Ranks that a test moves one by one. A subclass sets ``ranks`` and ``random``, and has `moves` and `make`."""

    ranks: list[Any]
    random: random.Random

    @abstractmethod
    def moves(self) -> list[tuple[str, Any]]:
        """What may happen next."""

    @abstractmethod
    def make(self, move: str, which: Any) -> None:
        """Makes one of `moves`."""

    def settle(self) -> None:
        """Makes moves in a random order until there are none."""
        moved = 0
        while moves := self.moves():
            self.make(*self.random.choice(moves))
            moved += 1
            assert moved < 20_000, "the ranks go on for ever"

    def check(self) -> None:
        """Nothing is in flight, and all ranks ran the same batches."""
        first = self.ranks[0]
        for rank in self.ranks:
            assert not rank.in_flight, (rank.rank, list(rank.in_flight))
            assert rank.ran == first.ran
            assert rank.replica.cache.known.keys() == first.replica.cache.known.keys()
            assert not rank.replica.by_bit

    def run_epoch(self, chance: random.Random) -> None:
        """Runs random programs until all ranks have joined, or have submitted the same."""
        size = len(self.ranks)
        todo = [program(chance) for _ in range(size)] if chance.random() < 0.5 else alike(chance, size)
        while True:
            moves = self.moves()
            able = [rank for rank in self.ranks if todo[rank.rank] and _is_free(rank, todo[rank.rank][0])]
            if not (moves or able):
                break
            if able and (not moves or chance.random() < 0.4):
                rank = chance.choice(able)
                item = todo[rank.rank].pop(0)
                rank.submit(*item, blank=[each.name for each in item if chance.random() < 0.2])
                rank.turn(chance.random() < 0.8)
            else:
                self.make(*chance.choice(moves))
        assert not any(todo)

    def close(self) -> None:
        for rank in self.ranks:
            if rank.page is not None:
                rank.page.close()


@contextmanager
def closing(kind: Callable[..., Moved]) -> Iterator[Callable[..., Any]]:
    """A function that makes groups of ``kind``, which are closed at the end."""
    made: list[Moved] = []

    def make(*arguments: Any, **options: Any) -> Moved:
        made.append(kind(*arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def _is_free(rank: Any, item: tuple[Request, ...]) -> bool:
    return not rank.has_joined and not any(each.name in rank.in_flight for each in item)

"""Random programs: what the ranks of a group submit, one item after the other."""

from __future__ import annotations

import random

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

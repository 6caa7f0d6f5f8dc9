"""Placement: ranks numbered within their host and across hosts.

A rank has two coordinates besides its own number. Its *local rank* counts the ranks of its host; its *cross rank*
counts the hosts that have a rank of that local rank. With three ranks on host a and one on host b::

    rank          0  1  2  3
    host          a  a  a  b
    local rank    0  1  2  0      of local size   3 3 3 1
    cross rank    0  0  0  1      of cross size   2 1 1 2

Hosts count in the order in which they first appear, so the same list gives the same numbers everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hvdlite.errors import BadHostSpec

MAX_RANKS = 1 << 16  # far more than hosts can run, yet few enough to list


@dataclass(frozen=True, slots=True)
class Placement:
    """The coordinates of one rank."""

    rank: int
    host: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def by_host(host_ids: Sequence[str]) -> dict[str, list[int]]:
    """The ranks of every host, ascending, given the host of every rank; equal ids are one host."""
    ranks_by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(host_ids):
        ranks_by_host.setdefault(host, []).append(rank)
    return ranks_by_host


def group(host_ids: Sequence[str]) -> tuple[Placement, ...]:
    """The placement of every rank, given the host of every rank; equal ids are one host."""
    ranks_by_host = by_host(host_ids)
    hosts_by_local_rank: dict[int, list[str]] = {}
    for host, ranks in ranks_by_host.items():
        for local_rank in range(len(ranks)):
            hosts_by_local_rank.setdefault(local_rank, []).append(host)
    placements = [
        Placement(
            rank=rank,
            host=host,
            local_rank=local_rank,
            local_size=len(ranks),
            cross_rank=hosts_by_local_rank[local_rank].index(host),
            cross_size=len(hosts_by_local_rank[local_rank]),
        )
        for host, ranks in ranks_by_host.items()
        for local_rank, rank in enumerate(ranks)
    ]
    return tuple(sorted(placements, key=lambda placement: placement.rank))


def place(hosts: Sequence[tuple[str, int]], size: int) -> tuple[Placement, ...]:
    """Gives ``size`` ranks to ``hosts``, (name, slots) each, filling every host before the next.

    A host may be listed twice; slots left over stay empty. Raises BadHostSpec if there are too few slots.
    """
    if not 1 <= size <= MAX_RANKS:
        raise BadHostSpec(f"a job has 1 to {MAX_RANKS} ranks, not {size}; give -np another number.")
    total = sum(count for _, count in hosts)
    if size > total:
        listed = ",".join(f"{name}:{count}" for name, count in hosts)
        raise BadHostSpec(f"{size} ranks do not fit into the {total} slots of {listed}; lower -np or raise the slots.")
    slots = (name for name, count in hosts for _ in range(count))
    return group(tuple(itertools.islice(slots, size)))

"""Which rank each process of an engine is, from the nodes on which the processes run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hvdlite.launched_by.numbers import numbers_of
from hvdlite.members.topology import Placement, by_host, group


class Node(NamedTuple):
    """A node of an engine: its unique ``id``, its ``name`` in messages, and its IP ``address``."""

    id: str
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of one rank in the job. ``has_neighbours`` is true if the job has ranks on other nodes."""

    placement: Placement
    size: int
    node: Node
    has_neighbours: bool

    @property
    def rank(self) -> int:
        return self.placement.rank

    @property
    def host(self) -> str:
        """The name of the node in messages."""
        return self.node.name

    @property
    def variables(self) -> dict[str, str]:
        """The environment of the rank, without the job's name, key and rendezvous.

        Only ranks of one node share memory: two nodes of one machine may be containers.
        """
        return numbers_of(self.placement, self.size) | {"HVDLITE_HOSTID": self.node.id}


def by_node(nodes: Sequence[Node]) -> list[int]:
    """The processes, given their nodes, in the order of their ranks: those of one node follow each other."""
    return [process for processes in by_host([node.id for node in nodes]).values() for process in processes]


def seats(nodes: Sequence[Node]) -> list[Seat]:
    """The seat of each rank, given the node of each."""
    placements = group([node.id for node in nodes])
    has_neighbours = len({node.id for node in nodes}) > 1
    return [
        Seat(replace(placement, host=node.name), len(nodes), node, has_neighbours)
        for placement, node in zip(placements, nodes, strict=True)
    ]

"""The planes in the contract suite, and how tests run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hvdlite.groups.choose import plane_part
from hvdlite.members.membership import Membership
from hvdlite.members.part import Part
from hvdlite.members.topology import by_host
from hvdlite.planes.base import DataPlane
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.tensors.buffer import Spans
from tests.contract import oracle
from tests.harness import thread_ranks
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S

Array = npt.NDArray[Any]
T = TypeVar("T")


class OpenPlanes(Protocol):
    def __call__(self, size: int, progress_timeout_s: float) -> AbstractContextManager[Sequence[DataPlane]]:
        """The connected planes of one group in rank order; closed at the end."""


class PlaneUnderTest(NamedTuple):
    """A plane joins the suite with one of these.

    ``folds_in_rank_order``: results equal the oracle's to the bit, also where the order of rounding matters.
    ``hosts``: the host of each rank, by the number of ranks, for a plane that may fold within hosts first.
    """

    name: str
    open: OpenPlanes
    sizes: Sequence[int]
    folds_in_rank_order: bool
    hosts: Mapping[int, str] = {}


@contextmanager
def connected(
    hosts: str, options: Settings, make: Callable[[Membership, Settings], Part[DataPlane]] = plane_part
) -> Iterator[Sequence[DataPlane]]:
    """The connected planes of ranks on ``hosts``, a letter for each; closed at the end."""
    with ExitStack() as stack:
        parts = [stack.enter_context(closing(make(member(rank, hosts), options))) for rank in range(len(hosts))]
        addresses, scope = [part.bind() for part in parts], Scope.of(PATIENCE_S)
        planes = thread_ranks(len(hosts), lambda rank: parts[rank].connect(addresses, scope))
        yield [stack.enter_context(closing(plane)) for plane in planes]


class Group:
    """The planes of one group, each driven by a thread of its own."""

    def __init__(self, kind: PlaneUnderTest, planes: Sequence[DataPlane]) -> None:
        self.kind = kind
        self.planes = planes
        self.size = len(planes)

    def run(self, work: Callable[[DataPlane], T], deadline_s: float = PATIENCE_S) -> list[T]:
        """``work(plane)`` on all ranks at once; the values in rank order, or the first error."""
        return thread_ranks(self.size, lambda rank: work(self.planes[rank]), deadline_s)

    def fold_orders(self, inputs: Sequence[Array]) -> list[oracle.Inputs]:
        """The orders in which the plane may fold an element: of rank, or that of a ring from any rank or host on."""
        if self.kind.folds_in_rank_order:
            return [inputs]
        hosts = by_host(self.kind.hosts.get(self.size, [str(rank) for rank in range(self.size)]))
        nested = [[inputs[rank] for rank in ranks] for ranks in hosts.values()]
        return [*_rotations(nested), *_rotations([each for of_host in nested for each in of_host])]


def _rotations(ring: Sequence[T]) -> list[list[T]]:
    return [[*ring[first:], *ring[:first]] for first in range(len(ring))]


def spans_of(*pairs: tuple[Array, Array]) -> Spans:
    """The rows of (array to read, array to write) pairs."""
    rows = [(read.ctypes.data, write.ctypes.data, write.nbytes) for read, write in pairs]
    return np.array(rows, np.uint64).reshape(-1, 3)


def receiving(*outputs: Array) -> Spans:
    """The rows of what another rank contributes: nothing to read, ``outputs`` to write."""
    return np.array([(0, output.ctypes.data, output.nbytes) for output in outputs], np.uint64).reshape(-1, 3)


def sending(*inputs: Array) -> Spans:
    """The rows of what is only read."""
    return np.array([(array.ctypes.data, 0, array.nbytes) for array in inputs], np.uint64).reshape(-1, 3)

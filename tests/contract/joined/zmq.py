"""The ring over ZeroMQ joins the contract suite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from hvdlite.planes.base import DataPlane
from hvdlite.planes.zmq.plane import ZmqPlane
from hvdlite.scope import Scope
from tests.contract.planes import PlaneUnderTest
from tests.harness import thread_ranks
from tests.harness.patience import PATIENCE_S

_KEY = bytes(range(32))


@contextmanager
def open_ring(size: int, progress_timeout_s: float) -> Iterator[Sequence[DataPlane]]:
    """The connected planes of a ring of ``size`` ranks."""
    with ExitStack() as stack:
        planes = [
            stack.enter_context(closing(ZmqPlane(rank, size, _KEY, progress_timeout_s=progress_timeout_s)))
            for rank in range(size)
        ]
        scope = Scope.of(PATIENCE_S)
        thread_ranks(size, lambda rank: planes[rank].connect(planes[(rank + 1) % size].address, scope))
        yield planes


PLANE = PlaneUnderTest("zmq", open_ring, sizes=(2, 3, 5), folds_in_rank_order=False)

"""The ring joins the contract suite, over both transports. Its frames are short, so that small vectors take many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager

from hvdlite.planes.base import DataPlane
from hvdlite.planes.ring.plane import RingPlane
from hvdlite.scope import Scope
from tests.contract.planes import PlaneUnderTest
from tests.harness import thread_ranks
from tests.harness.patience import PATIENCE_S

_SECRET = bytes(range(32))


@contextmanager
def open_ring(
    size: int, progress_timeout_s: float, *, window: int, connections: int, address: str | None, encrypt: bool
) -> Iterator[Sequence[DataPlane]]:
    """The connected planes of a ring of ``size`` ranks."""
    with ExitStack() as stack:
        planes = [
            RingPlane(
                rank,
                size,
                _SECRET,
                1,
                chunk_bytes=4096,
                window=window,
                connections=connections,
                progress_timeout_s=progress_timeout_s,
                address=address,
                encrypt=encrypt,
            )
            for rank in range(size)
        ]
        for plane in planes:
            stack.enter_context(closing(plane))
        scope = Scope.of(PATIENCE_S)
        thread_ranks(size, lambda rank: planes[rank].connect(planes[(rank + 1) % size].address, scope))
        yield planes


def _open(size: int, progress_timeout_s: float) -> AbstractContextManager[Sequence[DataPlane]]:
    # Odd sizes use TCP and even ones Unix sockets, and the largest encrypts.
    address = "127.0.0.1" if size % 2 else None
    return open_ring(size, progress_timeout_s, window=3, connections=1, address=address, encrypt=size == 5)


PLANE = PlaneUnderTest("ring", _open, sizes=(2, 3, 4, 5), folds_in_rank_order=False)

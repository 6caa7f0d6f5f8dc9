"""A ring of two planes in one process, which a test connects as it likes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import numpy as np

from hvdlite.core.dtypes import DType, Sum
from hvdlite.dataplane.ring import RingPlane
from hvdlite.errors import HorovodInternalError
from tests.contract.planes import spans_of
from tests.harness import thread_ranks

SECRET = bytes(range(32))


@contextmanager
def two_planes(
    *secrets: bytes, address: str | None = None, encrypt: bool = False, progress_timeout_s: float = 10
) -> Iterator[list[RingPlane]]:
    """Not connected yet; each with its own of ``secrets``."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                closing(
                    RingPlane(
                        rank,
                        2,
                        secret,
                        1,
                        chunk_bytes=4096,
                        window=2,
                        progress_timeout_s=progress_timeout_s,
                        address=address,
                        encrypt=encrypt,
                    )
                )
            )
            for rank, secret in enumerate(secrets or (SECRET, SECRET))
        ]


def connect(planes: list[RingPlane], timeout_s: float, *addresses: str) -> list[str]:
    """Connects both, each to its own of ``addresses``; what each raised."""
    deadline = time.monotonic() + timeout_s

    def attempt(rank: int) -> str:
        try:
            planes[rank].connect(addresses[rank] if addresses else planes[1 - rank].address, deadline)
        except HorovodInternalError as error:
            return str(error)
        return ""

    return thread_ranks(2, attempt)


def allreduce(plane: RingPlane, count: int) -> bool:
    """Reduces ``count`` integers in place, a different sum for each; whether they are right."""
    array = np.arange(count, dtype=np.int32) * (plane.rank + 1)
    plane.allreduce(spans_of((array, array)), DType.INT32, Sum, 1.0, 1.0)
    return bool((array == 3 * np.arange(count, dtype=np.int32)).all())


def wait_until(is_true: Callable[[], bool]) -> None:
    """For what a keeper's thread tells a moment after its neighbour has noticed."""
    deadline = time.monotonic() + 5
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # how often the test looks

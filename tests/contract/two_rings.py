"""A ring of two planes in one process, which a test connects as it likes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import numpy as np

from hvdlite.errors import HorovodInternalError
from hvdlite.planes.ring.plane import RingPlane
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.tensors.dtypes import DType, Sum
from tests.contract.meddler import Meddler
from tests.contract.planes import spans_of
from tests.harness import thread_ranks
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S

KEY = bytes(range(32))
OTHER_KEY = bytes(32)
SECRET, SESSION = member(0, "ab", KEY).key_for("ring"), member(0, "ab", KEY).session
HEARD = "its neighbour has failed"


@contextmanager
def two_planes(
    *keys: bytes,
    address: str | None = None,
    encrypt: bool = False,
    progress_timeout_s: float = PATIENCE_S,
    connections: Sequence[int] = (1, 1),
) -> Iterator[list[RingPlane]]:
    """Not connected yet; each with its own of ``keys`` and of ``connections``. Without an address, on one host."""
    options = Settings(
        ring_chunk=4096, ring_window=2, progress_timeout=progress_timeout_s, address=address or "", encrypt_data=encrypt
    )
    hosts = "ab" if address else "aa"
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(RingPlane(member(rank, hosts, key), replace(options, ring_connections=count))))
            for rank, (key, count) in enumerate(zip(keys or (KEY, KEY), connections, strict=True))
        ]


def connect(planes: list[RingPlane], *addresses: str) -> list[str]:
    """Connects both, each to its own of ``addresses``; what each raised: whoever fails ends the other, with HEARD."""
    scope = Scope.of(PATIENCE_S)

    def attempt(rank: int) -> str:
        try:
            planes[rank].connect(addresses[rank] if addresses else planes[1 - rank].address, scope)
        except HorovodInternalError as error:
            planes[1 - rank].abort(HorovodInternalError(HEARD))  # as the control links would
            return str(error)
        return ""

    return thread_ranks(2, attempt)


def allreduce(plane: RingPlane, count: int) -> bool:
    """Reduces ``count`` integers in place, a different sum for each; whether they are right."""
    array = np.arange(count, dtype=np.int32) * (plane.rank + 1)
    plane.allreduce(spans_of((array, array)), DType.INT32, Sum, 1.0, 1.0)
    return bool((array == 3 * np.arange(count, dtype=np.int32)).all())


@contextmanager
def meddled(
    encrypt: bool = False, progress_timeout_s: float = PATIENCE_S, connections: int = 1
) -> Iterator[tuple[list[RingPlane], Meddler]]:
    """Two connected planes over TCP; the meddler stands between rank 0 and its right neighbour, rank 1."""
    both = (connections, connections)
    with (
        two_planes(
            address="127.0.0.1", encrypt=encrypt, progress_timeout_s=progress_timeout_s, connections=both
        ) as planes,
        Meddler(planes[1].address) as meddler,
    ):
        assert connect(planes, meddler.name, planes[0].address) == ["", ""]
        yield planes, meddler


def reduce_until(planes: list[RingPlane], is_enough: threading.Event) -> None:
    """Both ranks reduce vectors of changing lengths until it is enough; rank 1 stops after as many as rank 0."""
    last = threading.Event()
    turns = [0]

    def work(rank: int) -> None:
        for turn in itertools.count(1):
            if rank == 0:
                if is_enough.is_set():
                    last.set()
                turns[0] = turn
            assert allreduce(planes[rank], 1 + turn * 7919 % 300_000)
            # Nobody leaves a barrier before rank 0 has said whether this turn is the last.
            planes[rank].barrier()
            if last.is_set() and turn == turns[0]:
                return
            planes[rank].barrier()

    thread_ranks(2, work)

"""Order, failure and end on every plane: barrier, programs of mixed collectives, abort, timeout, close."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from hvdlite.errors import HorovodInternalError, PeerLost
from hvdlite.planes.base import DataPlane
from hvdlite.tensors.dtypes import DType, Sum
from tests.contract.joined import PLANES
from tests.contract.planes import Group, PlaneUnderTest, receiving, spans_of
from tests.harness.patience import PATIENCE_S

WITH_PEERS = [kind for kind in PLANES if 3 in kind.sizes]


def test_nobody_leaves_a_barrier_before_all_have_entered(group: Group) -> None:
    entered = [0] * group.size

    def work(plane: DataPlane) -> None:
        for turn in range(1, 200):
            entered[plane.rank] = turn
            plane.barrier()
            assert min(entered) >= turn

    group.run(work)


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "alltoall", "barrier"])
def test_abort_ends_a_waiting_rank_with_its_error(own_trio: Group, collective: str) -> None:
    plane = own_trio.planes[0]
    error = PeerLost(2, "here", "it went silent")
    array = np.ones(100_000, np.float32)
    streams = [spans_of((array, array)), receiving(array), spans_of()]
    parts = [spans_of((array, array)), spans_of(), spans_of()]
    nothing, cells = [spans_of()] * 3, [spans_of(), receiving(array), spans_of()]
    matrix = np.array([[0, 0, 0], [array.nbytes, 0, 0], [0, 0, 0]], np.uint64)
    calls = {
        "allreduce": lambda: plane.allreduce(spans_of((array, array)), DType.FLOAT32, Sum, 1.0, 1.0),
        "allgather": lambda: plane.allgather(streams),
        "reducescatter": lambda: plane.reducescatter(parts, DType.FLOAT32, Sum, 1.0, 1.0),
        "alltoall": lambda: plane.alltoall(nothing, cells, matrix),
        "barrier": plane.barrier,
    }
    raised: list[BaseException] = []

    def wait_for_peers_that_never_come() -> None:
        try:
            calls[collective]()
        except HorovodInternalError as caught:
            raised.append(caught)

    waiter = threading.Thread(target=wait_for_peers_that_never_come)
    waiter.start()
    waiter.join(0.1)
    assert waiter.is_alive()
    plane.abort(error)
    waiter.join(PATIENCE_S)
    assert raised == [error]
    for call in calls.values():
        with pytest.raises(PeerLost) as caught:
            call()
        assert caught.value is error


def test_the_first_abort_counts(own_group: Group) -> None:
    first, second = PeerLost(0, "here", "first"), PeerLost(1, "there", "second")
    for plane in own_group.planes:
        plane.abort(first)
        plane.abort(second)
        with pytest.raises(PeerLost) as caught:
            plane.barrier()
        assert caught.value is first


@pytest.mark.parametrize("kind", WITH_PEERS, ids=lambda kind: kind.name)
def test_silence_ends_with_a_timeout(kind: PlaneUnderTest) -> None:
    with kind.open(2, progress_timeout_s=0.3) as planes:
        began = time.monotonic()
        with pytest.raises(HorovodInternalError, match="HVDLITE_PROGRESS_TIMEOUT"):
            planes[1].barrier()
        assert 0.25 < time.monotonic() - began < PATIENCE_S
        with pytest.raises(HorovodInternalError):
            planes[1].barrier()


def test_a_closed_plane_may_be_closed_again(own_group: Group) -> None:
    own_group.run(lambda plane: plane.barrier())
    for plane in own_group.planes:
        plane.close()
        plane.close()

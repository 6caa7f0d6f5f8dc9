"""The ring over ZeroMQ beyond the contract: who may join it, and the end of a connection."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest
import zmq

from hvdlite import native
from hvdlite.errors import HorovodInternalError, PeerLost
from hvdlite.net.listening import split
from hvdlite.planes.arithmetic import values_of
from hvdlite.planes.zmq.plane import ZmqPlane
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.tensors.dtypes import DType, Max, Min, Product, Sum
from tests.contract.joined.zmq import open_ring
from tests.contract.planes import spans_of
from tests.harness import thread_ranks
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S

OPTIONS = Settings(progress_timeout=PATIENCE_S)


@pytest.mark.parametrize("op", [Sum, Min, Max, Product])
def test_every_bfloat16_is_the_upper_half_of_a_float32_and_is_rounded_as_the_native_library_does(op: int) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    inputs = [every, np.random.default_rng(op).permutation(every)]
    outputs = [np.empty_like(each) for each in inputs]

    with open_ring(2, PATIENCE_S) as planes:
        thread_ranks(
            2,
            lambda rank: planes[rank].allreduce(spans_of((inputs[rank], outputs[rank])), DType.BFLOAT16, op, 1.0, 1.0),
        )
    assert outputs[0].tobytes() == outputs[1].tobytes()
    expected, sources = np.empty_like(every), (ctypes.c_void_p * 2)(*(each.ctypes.data for each in inputs))
    reduction = native.Reduction(int(DType.BFLOAT16), op, 1.0, 1.0)
    assert not native.library().hvd_reduce(expected.ctypes.data, sources, 2, len(every), ctypes.byref(reduction))
    is_number = ~np.isnan(values_of(expected, DType.BFLOAT16))
    np.testing.assert_array_equal(outputs[0][is_number], expected[is_number])
    others = outputs[0][~is_number]
    assert np.isnan(values_of(others, DType.BFLOAT16)).all()
    assert (others & 0x40).all()  # quiet


def test_a_neighbour_that_ends_is_lost_once_what_it_sent_is_read() -> None:
    with open_ring(2, PATIENCE_S) as planes:
        survivor, other = planes
        thread_ranks(2, lambda rank: planes[rank].barrier())
        array = np.ones(10, np.float32)
        waiter = threading.Thread(target=other.close)
        waiter.start()
        with pytest.raises(PeerLost, match="rank 1") as caught:
            survivor.allreduce(spans_of((array, array)), DType.FLOAT32, Sum, 1.0, 1.0)
        assert caught.value.rank == 1
        waiter.join(PATIENCE_S)
        with pytest.raises(PeerLost) as again:
            survivor.barrier()
        assert again.value is caught.value


def test_strangers_and_other_groups_stay_outside() -> None:
    planes = [ZmqPlane(member(rank, "aa"), OPTIONS) for rank in range(2)]
    context = zmq.Context()
    try:
        plain = context.socket(zmq.PUSH)  # without CURVE
        plain.linger = 0
        plain.connect(planes[0].address)
        plain.send(b"\0" * 8)
        other = ZmqPlane(member(1, "aa", bytes(32)), OPTIONS)
        with pytest.raises(HorovodInternalError, match="rank 0 did not connect to it in time"):
            other.connect(planes[0].address, Scope.of(0.5))
        other.close()
        scope = Scope.of(PATIENCE_S)
        thread_ranks(2, lambda rank: planes[rank].connect(planes[1 - rank].address, scope))
        thread_ranks(2, lambda rank: planes[rank].barrier())
    finally:
        for plane in planes:
            plane.close()
        context.destroy(linger=0)


def test_a_stranger_that_leaves_is_not_taken_for_the_neighbour() -> None:
    with open_ring(2, PATIENCE_S) as planes:
        with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
            stranger.linger = 0
            stranger.connect(planes[0].address)
        assert split(planes[0].address)
        thread_ranks(2, lambda rank: planes[rank].barrier())


def test_a_rank_that_is_not_the_left_neighbour_is_refused() -> None:
    planes = [ZmqPlane(member(rank, "aaa"), OPTIONS) for rank in range(3)]
    scope = Scope.of(PATIENCE_S)
    try:
        caller = threading.Thread(target=planes[1].connect, args=(planes[0].address, scope))
        caller.start()
        with pytest.raises(HorovodInternalError, match="rank 0 was called by a rank that is not its left"):
            planes[0].connect(planes[1].address, scope)
        caller.join(PATIENCE_S)
    finally:
        for plane in planes:
            plane.close()

"""Connections of a ring that break, lose or damage what they carry: sums stay exact, what cannot be mended is named."""

from __future__ import annotations

import ctypes.util
import importlib
import os
import threading
import time

import numpy as np
import pytest

from hvdlite.errors import HorovodInternalError
from hvdlite.net.handshake import Caller
from hvdlite.tensors.dtypes import DType, Max
from tests.contract.planes import spans_of
from tests.contract.two_rings import allreduce, meddled, reduce_until, two_planes
from tests.harness import thread_ranks
from tests.harness.patience import until

HELLO_AND_PROOF_BYTES = len(Caller(b"", 0, 0, 1).hello) + 32
ENCRYPTED = pytest.mark.parametrize("encrypt", [False, True], ids=["plain", "encrypted"])


@ENCRYPTED
def test_resets_every_50_ms_change_no_sum(encrypt: bool) -> None:
    with meddled(encrypt) as (planes, meddler):
        is_enough = threading.Event()

        def reset_repeatedly() -> None:
            for _ in range(20):
                time.sleep(0.05)  # the interval of the fault
                meddler.reset()
            is_enough.set()

        mischief = threading.Thread(target=reset_repeatedly)
        mischief.start()
        reduce_until(planes, is_enough)
        mischief.join()
        until(lambda: min(plane.counters["resumed"] for plane in planes) >= 3)


@ENCRYPTED
def test_flipped_bits_change_no_sum(encrypt: bool) -> None:
    with meddled(encrypt) as (planes, meddler):
        meddler.flip_every = 1 << 20
        is_enough = threading.Event()

        def wait_for_damage() -> None:
            until(lambda: planes[1].counters["corrupt"] >= 5)
            is_enough.set()

        watcher = threading.Thread(target=wait_for_damage)
        watcher.start()
        reduce_until(planes, is_enough)
        watcher.join()
        until(lambda: planes[1].counters["resumed"] >= 5)
        assert planes[0].counters["corrupt"] == 0


@ENCRYPTED
def test_a_link_that_damages_every_frame_is_named(encrypt: bool) -> None:
    with meddled(encrypt) as (planes, meddler):
        assert thread_ranks(2, lambda rank: allreduce(planes[rank], 100)) == [True, True]
        meddler.flip_every, meddler.spared_bytes = 64, HELLO_AND_PROOF_BYTES
        meddler.reset()

        def work(rank: int) -> str:
            with pytest.raises(HorovodInternalError) as caught:
                allreduce(planes[rank], 300_000)
            planes[1 - rank].abort(HorovodInternalError("what the control plane does"))
            return str(caught.value)

        errors = thread_ranks(2, work)
        assert "rank 1 of the ring, next to rank 0, failed: a frame arrived damaged" in errors[1]


def test_what_a_finished_rank_sent_arrives_over_a_new_connection() -> None:
    """Rank 0 broadcasts a few bytes, which are lost, and computes on: its reconnector alone can send them again."""
    with meddled() as (planes, meddler):
        meddler.is_lossy = True
        array = np.array([[1, 2, 3], [0, 0, 0]], np.int64)
        none = np.empty(0, np.int64)
        streams = [[spans_of((array[rank], array[rank])), spans_of((none, none))] for rank in range(2)]
        planes[0].allgather(streams[0])
        until(lambda: meddler.lost_bytes > 0)
        meddler.is_lossy = False
        meddler.reset()
        planes[1].allgather(streams[1])
        assert array.tolist() == [[1, 2, 3], [1, 2, 3]]
        until(lambda: planes[0].counters["resumed"] == 1)


def test_an_idle_connection_is_made_again() -> None:
    with meddled() as (planes, meddler):
        for resumed in range(1, 4):
            assert thread_ranks(2, lambda rank: allreduce(planes[rank], 1000)) == [True, True]
            meddler.reset()
            until(lambda least=resumed: min(plane.counters["resumed"] for plane in planes) >= least)
        assert thread_ranks(2, lambda rank: allreduce(planes[rank], 1000)) == [True, True]


def test_connections_that_were_replaced_are_closed() -> None:
    with meddled() as (planes, meddler):
        before = 0
        for turn in range(10):
            meddler.reset()
            assert thread_ranks(2, lambda rank: allreduce(planes[rank], 10_000)) == [True, True]
            until(lambda least=turn: min(plane.counters["resumed"] for plane in planes) > least)
            descriptors = len(os.listdir("/proc/self/fd"))
            before = before or descriptors
            assert descriptors <= before + 4


def test_a_neighbour_that_cannot_be_reached_again_is_named() -> None:
    with meddled(progress_timeout_s=1) as (planes, meddler):
        meddler.refuse()
        meddler.reset()
        until(lambda: planes[0]._error is not None)
        with pytest.raises(HorovodInternalError, match="rank 0 lost its connection to rank 1 .*Connection refused"):
            planes[0].barrier()


@ENCRYPTED
@pytest.mark.parametrize("connections", [1, 3])
def test_only_plain_tensors_can_be_read_on_the_way(encrypt: bool, connections: int) -> None:
    with meddled(encrypt, connections=connections) as (planes, meddler):

        def work(rank: int) -> list[bytes]:
            arrays = [np.frombuffer(bytearray(b"gradient" * size), np.uint8) for size in (8, 10_000)]
            for array in arrays:
                planes[rank].allreduce(spans_of((array, array)), DType.UINT8, Max, 1.0, 1.0)
            return [array.tobytes() for array in arrays]

        for results in thread_ranks(2, work):
            assert results == [b"gradient" * 8, b"gradient" * 10_000]
        assert len(meddler.heard) > 80_000
        assert (b"gradient" in meddler.heard) is not encrypt


def test_a_python_without_libcrypto_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.listdir("/proc/self/fd")
    for path in (None, ctypes.util.find_library("m")):
        monkeypatch.setattr(importlib.import_module("_hashlib"), "__file__", path)
        with (
            pytest.raises(HorovodInternalError, match="no OpenSSL.*--encrypt-data"),
            two_planes(address="127.0.0.1", encrypt=True),
        ):
            raise AssertionError("a ring that should encrypt was opened")
    assert os.listdir("/proc/self/fd") == before


def test_who_closes_first_tells_its_left_neighbour_what_it_has_over_another_connection() -> None:
    with meddled() as (planes, meddler):
        assert thread_ranks(2, lambda rank: allreduce(planes[rank], 300_000)) == [True, True]
        meddler.reset()
        until(lambda: planes[1]._reconnector._acceptor.is_cut_off or planes[1].counters["resumed"] > 0)  # type: ignore[union-attr]
        planes[1].close()
        until(lambda: planes[0].counters["resumed"] == 1)

"""A ring of several connections to each neighbour: what becomes of one of them is no matter of the others."""

from __future__ import annotations

import threading

import pytest

from hvdlite.errors import HorovodInternalError
from hvdlite.planes.ring.plane import RingPlane
from tests.contract.two_rings import allreduce, connect, meddled, reduce_until, two_planes
from tests.harness import thread_ranks
from tests.harness.patience import until

CONNECTIONS = 3
ENCRYPTED = pytest.mark.parametrize("encrypt", [False, True], ids=["plain", "encrypted"])


@ENCRYPTED
def test_one_connection_that_is_reset_again_and_again_changes_no_sum_and_no_other_connection(encrypt: bool) -> None:
    with meddled(encrypt, connections=CONNECTIONS) as (planes, meddler):
        is_enough = threading.Event()

        def reset_repeatedly() -> None:
            for resets in range(1, 11):
                meddler.reset(1)
                until(lambda least=resets: min(plane.counters["resumed"] for plane in planes) >= least)
            is_enough.set()

        mischief = threading.Thread(target=reset_repeatedly)
        mischief.start()
        reduce_until(planes, is_enough)
        mischief.join()
        assert [plane.counters for plane in planes] == [{"resumed": 10, "corrupt": 0}] * 2


@ENCRYPTED
def test_a_damaged_frame_ends_its_own_connection_only(encrypt: bool) -> None:
    with meddled(encrypt, connections=CONNECTIONS) as (planes, meddler):
        is_enough = threading.Event()
        meddler.damaged_connections, meddler.flip_every = 1, 1 << 20

        def wait_for_damage() -> None:
            until(lambda: [plane.counters["resumed"] for plane in planes] == [1, 1])
            is_enough.set()

        watcher = threading.Thread(target=wait_for_damage)
        watcher.start()
        reduce_until(planes, is_enough)
        watcher.join()
        assert [plane.counters for plane in planes] == [{"resumed": 1, "corrupt": n} for n in (0, 1)]


def test_all_connections_are_made_again() -> None:
    with meddled(connections=CONNECTIONS) as (planes, meddler):
        for turn in range(1, 4):
            meddler.reset()
            assert thread_ranks(2, lambda rank: allreduce(planes[rank], 10_000)) == [True, True]
            until(lambda times=turn: [plane.counters["resumed"] for plane in planes] == [times * CONNECTIONS] * 2)


def test_a_neighbour_that_one_connection_cannot_reach_again_is_named() -> None:
    with meddled(progress_timeout_s=1, connections=CONNECTIONS) as (planes, meddler):
        meddler.reset(1)
        until(lambda: planes[0].counters["resumed"] == 1)
        meddler.refuse()
        meddler.reset(1)  # the one after it, which nothing has happened to yet
        until(lambda: planes[0]._error is not None)
        with pytest.raises(HorovodInternalError, match=r"rank 0 lost its connection to rank 1 .*Connection refused"):
            planes[0].barrier()


def test_the_last_frames_of_all_connections_arrive_although_the_plane_is_closed_at_once() -> None:
    for _ in range(10):
        with two_planes(address="127.0.0.1", connections=(CONNECTIONS, CONNECTIONS)) as planes:
            assert connect(planes) == ["", ""]

            def work(rank: int, planes: list[RingPlane] = planes) -> bool:
                is_right = allreduce(planes[rank], 20_000)
                planes[rank].barrier()
                planes[rank].close()
                return is_right

            assert thread_ranks(2, work) == [True, True]


def test_who_closes_first_tells_its_left_neighbour_what_it_has_over_other_connections() -> None:
    with meddled(connections=CONNECTIONS) as (planes, meddler):
        assert thread_ranks(2, lambda rank: allreduce(planes[rank], 300_000)) == [True, True]
        meddler.reset(2)
        acceptor = planes[1]._reconnector._acceptor  # type: ignore[union-attr]
        until(lambda: len(acceptor._cut_off) + planes[1].counters["resumed"] >= 2)
        planes[1].close()
        until(lambda: planes[0].counters["resumed"] == 2)

"""What the ring does beyond the contract: strangers, neighbours that are wrong or missing, and the end of a plane."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import numpy as np
import pytest
import zmq

from hvdlite.core.dtypes import DType, Sum
from hvdlite.dataplane.ring import RingPlane
from hvdlite.errors import HorovodInternalError
from tests.contract.planes import spans_of
from tests.harness import thread_ranks

SECRETS = (bytes(range(32)), bytes(32))


@contextmanager
def two_planes(*secrets: bytes) -> Iterator[list[RingPlane]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                closing(RingPlane(rank, 2, secret, 1, chunk_bytes=4096, window=2, progress_timeout_s=10))
            )
            for rank, secret in enumerate(secrets)
        ]


def connect(planes: list[RingPlane], timeout_s: float) -> list[str]:
    """Connects both; what each raised."""
    deadline = time.monotonic() + timeout_s

    def attempt(rank: int) -> str:
        try:
            planes[rank].connect(planes[1 - rank].address, deadline)
        except HorovodInternalError as error:
            return str(error)
        return ""

    return thread_ranks(2, attempt)


def test_strangers_change_nothing_before_or_after_the_neighbour_came() -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger, two_planes(SECRETS[0], SECRETS[0]) as planes:
        stranger.linger = 0
        stranger.connect(planes[0].address)
        for parts in ([b""], [b"hvdRing1"], [bytes(80)], [b"hvR1" + bytes(28), b"payload"], [bytes(4097)]):
            stranger.send_multipart(parts)
        assert connect(planes, 5) == ["", ""]
        arrays = [np.full(50_000, rank + 1, np.int32) for rank in range(2)]

        def work(rank: int) -> None:
            stranger.send_multipart([b"hvR1" + bytes(28), b"payload"])
            planes[rank].allreduce(spans_of((arrays[rank], arrays[rank])), DType.INT32, Sum, 1.0, 1.0)

        thread_ranks(1, lambda _: connect_late_stranger(context, planes[1].address))
        thread_ranks(2, work)
        assert all((array == 3).all() for array in arrays)


def connect_late_stranger(context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
    with context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.connect(address)
        stranger.send_multipart([bytes(32), bytes(100)])


def test_a_neighbour_with_another_secret_is_refused_by_name() -> None:
    began = time.monotonic()
    with two_planes(*SECRETS) as planes:
        errors = connect(planes, 1)
    # Whoever finds out first leaves, and the other one is left without an answer.
    for error, neighbour in zip(errors, (1, 0), strict=True):
        assert f"rank {neighbour} does not have the secret of this job" in error or f"rank {neighbour} did not" in error
    assert "does not have the secret" in "".join(errors)
    assert time.monotonic() - began < 3


def test_a_neighbour_that_does_not_come_is_named() -> None:
    began = time.monotonic()
    with two_planes(SECRETS[0], SECRETS[0]) as planes:
        with pytest.raises(HorovodInternalError, match="rank 0 cannot join the ring.* rank 1 did not answer in time"):
            planes[0].connect(planes[1].address, time.monotonic() + 0.3)
        with pytest.raises(HorovodInternalError, match="did not answer in time"):
            planes[0].barrier()
    assert time.monotonic() - began < 3


def test_the_last_frames_reach_a_neighbour_although_the_plane_is_closed_at_once() -> None:
    for _ in range(20):
        with two_planes(SECRETS[0], SECRETS[0]) as planes:
            assert connect(planes, 5) == ["", ""]

            def work(rank: int, planes: list[RingPlane] = planes) -> None:
                array = np.full(1000, rank + 1, np.int32)
                planes[rank].allreduce(spans_of((array, array)), DType.INT32, Sum, 1.0, 1.0)
                planes[rank].barrier()
                planes[rank].close()
                assert (array == 3).all()

            thread_ranks(2, work)


def test_a_ring_of_one_or_with_an_impossible_rank_is_refused() -> None:
    for rank, size in ((0, 1), (2, 2), (-1, 2)):
        with pytest.raises(ValueError, match="at least 2 ranks"):
            RingPlane(rank, size, SECRETS[0], 1, chunk_bytes=4096, window=2, progress_timeout_s=1)


def test_an_address_that_cannot_be_bound_is_named() -> None:
    with pytest.raises(HorovodInternalError, match="rank 0 cannot listen on tcp://203.0.113.1"):
        RingPlane(0, 2, SECRETS[0], 1, chunk_bytes=4096, window=2, progress_timeout_s=1, bind="tcp://203.0.113.1:*")

"""A network that drops what goes over a ring without a word, as nothing but time shows."""

from __future__ import annotations

import time

import numpy as np
import pytest

from hvdlite.errors import HorovodInternalError
from hvdlite.planes.ring.plane import RingPlane
from hvdlite.tensors.dtypes import DType, Sum
from tests.contract.planes import spans_of
from tests.contract.two_rings import allreduce, connect, two_planes
from tests.harness import thread_ranks
from tests.harness.network import drop, in_private_network, ports_of_connections
from tests.harness.patience import PATIENCE_S, until


def _port(plane: RingPlane) -> int:
    return int(plane.address.rpartition(":")[2])


@pytest.mark.parametrize(("end", "connections"), [("sport", 1), ("dport", 1), ("sport", 3)])
@in_private_network
def test_a_connection_that_carries_nothing_any_more_is_replaced(end: str, connections: int) -> None:
    with two_planes(
        address="127.0.0.1", progress_timeout_s=PATIENCE_S, connections=(connections, connections)
    ) as planes:
        assert connect(planes) == ["", ""]
        assert thread_ranks(2, lambda rank: allreduce(planes[rank], 1000)) == [True, True]
        caller, *others = ports_of_connections(_port(planes[1]))
        assert len(others) == connections - 1
        begun = time.monotonic()
        drop(f"tcp {end} {caller}")  # what one side sends, for good
        assert thread_ranks(2, lambda rank: allreduce(planes[rank], 100_000)) == [True, True]
        assert time.monotonic() - begun > 2.0
        until(lambda: [plane.counters["resumed"] for plane in planes] == [1, 1])


@in_private_network
def test_a_neighbour_that_cannot_be_reached_is_named_before_the_progress_timeout() -> None:
    with two_planes(address="127.0.0.1", progress_timeout_s=2 * PATIENCE_S) as planes:
        assert connect(planes) == ["", ""]

        def work(rank: int) -> str:
            array = np.ones(100_000, np.int32)
            with pytest.raises(HorovodInternalError) as caught:
                planes[rank].allreduce(spans_of((array, array)), DType.INT32, Sum, 1.0, 1.0)
            planes[1 - rank].abort(caught.value)  # as the control links would
            return str(caught.value)

        begun = time.monotonic()
        drop(f"tcp dport {_port(planes[1])}", f"tcp sport {_port(planes[1])}")
        error, heard = thread_ranks(2, work)
        assert time.monotonic() - begun > 5.0
    assert error == heard
    assert f"rank 0 lost its connection to rank 1 at {planes[1].address} and could not re-establish it for" in error
    assert "firewall" in error


def test_a_neighbour_that_takes_nothing_for_a_while_is_not_taken_for_a_silent_one() -> None:
    with two_planes(address="127.0.0.1", progress_timeout_s=PATIENCE_S) as planes:
        assert connect(planes) == ["", ""]

        def work(rank: int) -> bool:
            time.sleep(rank * 4.0)  # rank 0 sends meanwhile, more than the kernel takes
            return allreduce(planes[rank], 8 << 20)

        assert thread_ranks(2, work) == [True, True]
        assert [plane.counters["resumed"] for plane in planes] == [0, 0]

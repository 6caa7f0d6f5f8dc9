"""The ring beyond the contract: strangers, neighbours that are wrong or missing, and the end of a plane."""

from __future__ import annotations

import os
import socket
import threading

import numpy as np
import pytest

from hvdlite.errors import HorovodInternalError
from hvdlite.net.handshake import Callee, Caller
from hvdlite.net.sockets import dial
from hvdlite.planes.ring.plane import RingPlane
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.tensors.dtypes import DType, Sum
from tests.contract.planes import spans_of
from tests.contract.two_rings import HEARD, KEY, OTHER_KEY, SECRET, SESSION, allreduce, connect, two_planes
from tests.harness import thread_ranks
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S, until

OTHER_SECRET = bytes(32)  # of no group
ADDRESSES = pytest.mark.parametrize("address", [None, "127.0.0.1", "::1"], ids=["unix", "tcp", "tcp6"])


def visit(plane: RingPlane, greeting: bytes) -> socket.socket:
    """A stranger who says something and stays."""
    stranger = dial(plane.address)
    stranger.setblocking(True)
    stranger.sendall(greeting)
    return stranger


def is_shown_out(stranger: socket.socket) -> bool:
    """True once the connection has ended. A stranger may have been answered before."""
    stranger.settimeout(PATIENCE_S)
    try:
        while stranger.recv(4096):
            continue
    except ConnectionError:
        pass
    stranger.close()
    return True


def greetings() -> list[bytes]:
    hello = Caller(OTHER_SECRET, SESSION, 0, 1).hello
    return [
        b"GET / HTTP/1.1\r\nHost: hvdlite.example\r\nAccept: everything that is long enough to be read\r\n\r\n",
        bytes(4097),
        os.urandom(len(hello)),
        hello + bytes(32),
        Caller(OTHER_SECRET, SESSION + 1, 0, 1).hello,
        Caller(SECRET, SESSION, 1, 0).hello + bytes(32),
        hello,
        hello[:17],
        b"",
    ]


@ADDRESSES
def test_strangers_change_nothing_before_or_after_the_neighbour_came(address: str | None) -> None:
    connections = (3, 3) if address else (1, 1)
    with two_planes(address=address, connections=connections) as planes:
        early = [visit(planes[1], greeting) for greeting in greetings()]
        assert connect(planes) == ["", ""]
        late = [visit(planes[1], greeting) for greeting in greetings()]
        assert thread_ranks(2, lambda rank: allreduce(planes[rank], 50_000)) == [True, True]
        assert all(is_shown_out(stranger) for stranger in (*early, *late))
        assert planes[1].counters == {"resumed": 0, "corrupt": 0}


def test_a_crowd_of_silent_strangers_neither_keeps_the_neighbour_out_nor_stays() -> None:
    with two_planes(address="127.0.0.1") as planes:
        crowd = [visit(planes[1], b"") for _ in range(200)]
        assert connect(planes) == ["", ""]
        descriptors = len(os.listdir("/proc/self/fd")) - len(crowd)
        assert descriptors < 200
        assert all(is_shown_out(stranger) for stranger in crowd)


def test_a_stranger_cannot_take_the_place_of_the_neighbour() -> None:
    """A listener to a whole handshake cannot replay it, and gets no proof that it could use."""
    with two_planes(address="127.0.0.1") as planes:
        assert connect(planes) == ["", ""]
        caller, callee = Caller(SECRET, SESSION, 0, 1), Callee(SECRET, SESSION, 1, 0)
        proof = caller.take(callee.take(caller.hello))
        assert is_shown_out(visit(planes[1], caller.hello + proof))
        assert thread_ranks(2, lambda rank: allreduce(planes[rank], 1000)) == [True, True]
        assert planes[1].counters == {"resumed": 0, "corrupt": 0}


def is_of_a_stranger(error: str) -> bool:
    return "it hung up during the handshake, as it does on callers that do not have the secret" in error


def end_when_refused(planes: list[RingPlane]) -> None:
    """Brings the deadline of one that has been refused forward: a stranger alone keeps nobody from connecting."""

    def is_refused(plane: RingPlane) -> bool:
        connectors = plane._reconnector._connectors if plane._reconnector is not None else []
        return any(is_of_a_stranger(connector.trouble) for connector in connectors)

    until(lambda: all(plane._reconnector is not None for plane in planes) and any(map(is_refused, planes)))
    refused = next(filter(is_refused, planes))
    assert refused._reconnector is not None
    refused._reconnector.stop()


def test_a_neighbour_with_another_secret_is_refused_by_name() -> None:
    with two_planes(KEY, OTHER_KEY) as planes:
        ending = threading.Thread(target=end_when_refused, args=(planes,))
        ending.start()
        errors = connect(planes)
        ending.join()
    named = [is_of_a_stranger(error) for error in errors]
    assert any(named)
    for rank, error in enumerate(errors):
        assert (
            error == HEARD or f"rank {rank} cannot join the ring: its right neighbour, rank {1 - rank} at unix" in error
        )


def test_neighbours_that_make_different_numbers_of_connections_are_named() -> None:
    with two_planes(address="127.0.0.1", connections=(3, 2)) as planes:
        errors = connect(planes)
    named = 0
    for rank, error in enumerate(errors):
        if error == HEARD:
            continue
        assert f"rank {rank} cannot join the ring: its " in error
        told = f"it makes {2 + rank} connections instead of {3 - rank}; HVDLITE_RING_CONNECTIONS must be the same"
        named += f"its left neighbour, rank {1 - rank}, disagrees with it: {told}" in error
    assert named >= 1  # whoever finds out first ends the other


def test_a_neighbour_that_does_not_come_is_named() -> None:
    with two_planes() as planes:
        with pytest.raises(HorovodInternalError, match="rank 0 cannot join the ring.* rank 1 at .*no answer in time"):
            planes[0].connect(planes[1].address, Scope.of(0.3))
        with pytest.raises(HorovodInternalError, match="no answer in time"):
            planes[0].barrier()


@ADDRESSES
def test_the_last_frames_reach_a_neighbour_although_the_plane_is_closed_at_once(address: str | None) -> None:
    for _ in range(20):
        with two_planes(address=address) as planes:
            assert connect(planes) == ["", ""]

            def work(rank: int, planes: list[RingPlane] = planes) -> None:
                array = np.full(1000, rank + 1, np.int32)
                planes[rank].allreduce(spans_of((array, array)), DType.INT32, Sum, 1.0, 1.0)
                planes[rank].barrier()
                planes[rank].close()
                assert (array == 3).all()

            thread_ranks(2, work)


def test_a_ring_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 ranks"):
        RingPlane(member(0, "a"), Settings())


def listening(address: str, port_range: str = "") -> RingPlane:
    return RingPlane(member(0, "ab"), Settings(address=address, port_range=port_range))


def test_an_address_that_is_not_this_host_s_is_named() -> None:
    with pytest.raises(HorovodInternalError, match=r"rank 0 cannot listen on 203\.0\.113\.1 .*--network-interface"):
        listening("203.0.113.1")


def test_a_range_of_ports_is_kept_to_and_its_end_is_an_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(HorovodInternalError, match=rf"127\.0\.0\.1.*ports {port}-{port}.*wider HVDLITE_PORT_RANGE"):
            listening("127.0.0.1", f"{port}-{port}")
    plane = listening("127.0.0.1", f"{port}-{port}")
    assert plane.address == f"tcp://127.0.0.1:{port}"
    plane.close()

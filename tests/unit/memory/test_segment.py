"""The way of a segment from the rank that made it to the others, and to nobody else."""

from __future__ import annotations

import os
import resource
import socket
import threading

import pytest

from hvdlite.errors import HorovodInternalError
from hvdlite.memory.segment import SegmentOffer, create, fetch
from hvdlite.scope import Scope
from tests.harness.patience import PATIENCE_S

_TOKEN = b"0123456789abcdef"


@pytest.fixture
def fd() -> object:
    fd = create(8192)
    yield fd
    os.close(fd)


def soon(seconds: float = PATIENCE_S) -> Scope:
    return Scope.of(seconds)


def serving(offer: SegmentOffer, count: int) -> threading.Thread:
    thread = threading.Thread(target=offer.serve, args=(count, soon()))
    thread.start()
    return thread


def test_memory_is_zeroed_private_and_of_fixed_size(fd: int) -> None:
    assert os.pread(fd, 8192, 0) == bytes(8192)
    assert not os.get_inheritable(fd)
    for length in (4096, 16384):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, length)


def test_more_memory_than_allowed_names_the_settings() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(HorovodInternalError, match="cannot reserve 8192 bytes .* HVDLITE_SHM_CHUNK"):
            create(8192)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_every_peer_gets_the_same_memory(fd: int) -> None:
    with SegmentOffer(fd, _TOKEN) as offer:
        server = serving(offer, 3)
        fetched = [fetch(offer.address, _TOKEN, soon()) for _ in range(3)]
        server.join()
    os.pwrite(fetched[0], b"shared", 100)
    for other in [fd, *fetched]:
        assert os.pread(other, 6, 100) == b"shared"
        assert os.fstat(other).st_ino == os.fstat(fd).st_ino
    for other in fetched:
        os.close(other)


def test_strangers_are_refused_and_delay_nobody(fd: int) -> None:
    with SegmentOffer(fd, _TOKEN) as offer, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect("\0" + offer.address)
        server = serving(offer, 1)
        with pytest.raises(HorovodInternalError, match="belongs to another job"):
            fetch(offer.address, b"another token", soon())
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gone:
            gone.connect("\0" + offer.address)
        os.close(fetch(offer.address, _TOKEN, soon()))
        server.join()


def test_an_offer_nobody_takes_ends_at_the_deadline(fd: int) -> None:
    with SegmentOffer(fd, _TOKEN) as offer:
        with pytest.raises(HorovodInternalError, match="2 of 2 ranks of this host did not fetch"):
            offer.serve(2, soon(0.1))
        with pytest.raises(HorovodInternalError, match="cannot fetch the shared segment"):
            fetch(offer.address, _TOKEN, soon(0.1))
    with pytest.raises(HorovodInternalError, match="cannot fetch the shared segment"):
        fetch(offer.address, _TOKEN, soon(0.1))

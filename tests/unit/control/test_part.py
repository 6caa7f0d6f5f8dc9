"""Which groups have a page: all ranks of a host, if not too many, since they get its descriptors in one message."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from unittest.mock import Mock

import pytest

from hvdlite.control.frames import FrameSocket
from hvdlite.control.page import MAX_RANKS, PageOffer
from hvdlite.control.part import _has_page
from hvdlite.engine.deciders.choose import decider_of
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.negotiation.messages import Ready, Run
from hvdlite.settings import Settings
from tests.harness.members import member
from tests.unit.links import soon
from tests.unit.replicas import request

FULL, MORE = "a" * 250, "a" * 251


@pytest.mark.parametrize(
    ("rank", "hosts", "has_page"),
    [(0, FULL, True), (0, MORE, False), (250, MORE, False), (0, MORE + "bb", False), (251, MORE + "bb", True)],
)
def test_up_to_250_ranks_of_a_host_have_a_page_whatever_other_hosts_have(rank: int, hosts: str, has_page: bool) -> None:
    assert _has_page(member(rank, hosts), Settings()) is has_page
    assert not _has_page(member(rank, hosts), Settings(page=False))


def test_the_descriptors_of_the_largest_page_fit_into_one_message() -> None:
    offer = PageOffer(MAX_RANKS, 1024)
    near, far = map(FrameSocket, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    with closing(offer), closing(near), closing(far):
        near.send_descriptors(b"1", offer.fds)
        text, fds = far.receive_descriptors(1 + MAX_RANKS, soon())
        for fd in fds:
            os.close(fd)
    assert text == b"1"


def test_without_a_page_the_root_decides_once_251_ranks_have_submitted() -> None:
    members = member(0, MORE)
    observer = Observer(InFlight(lambda: None), members.leader_of)
    root = decider_of(members, Settings(), Mock(), observer, None)
    ready = Ready(0, 0, (request("a"),))
    root.submit(ready, 0.0)
    for rank in range(1, members.size):
        assert list(root.decisions(True, 0.0)) == []
        root.receive(rank, ready, 0.0)
    (run,) = root.decisions(True, 0.0)
    assert isinstance(run, Run)
    assert [response.name for batch in run.batches for response in batch.responses] == ["a"]

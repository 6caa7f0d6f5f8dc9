"""Control links across hosts while connections are cut, corrupted, held back, replayed and claimed by others."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from hvdlite.core.greeting import Refused
from hvdlite.core.messages import Batch, Ready, Run
from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.listening import split
from hvdlite.runtime.control import ControlLink, Lost
from tests.harness.patience import PATIENCE_S
from tests.unit.links import LEFT, close, next_from, receive, zmq_links
from tests.unit.middleman import Middleman

COUNT = 600


class Job3:
    """Three links of one job, the leaves' through a man in the middle."""

    def __init__(self, context: Any) -> None:
        self.job = Job.create()
        self.middlemen: list[Middleman] = []
        self.links: list[ControlLink] = zmq_links(context, self.job, self._through)

    @property
    def middleman(self) -> Middleman:
        return self.middlemen[0]

    def _through(self, card: str) -> str:
        self.middlemen.append(Middleman(card))
        return self.middleman.address


@pytest.fixture
def job() -> Iterator[Job3]:
    with zmq.Context() as context:
        job = Job3(context)
        with job.middleman:
            yield job
            close(job.links)


@pytest.mark.parametrize("trouble", [Middleman.cut, Middleman.flip], ids=["cut", "flipped"])
def test_messages_arrive_once_and_in_order_over_connections_that_break(job: Job3, trouble: Any) -> None:
    root, leaf, other = job.links
    came: dict[ControlLink, list[Any]] = {root: [], leaf: [], other: []}
    sent = 0
    troubles = 0
    next_trouble = 0.0
    deadline = time.monotonic() + PATIENCE_S
    while min(len(came[root]) // 2, len(came[leaf]), len(came[other])) < COUNT and time.monotonic() < deadline:
        if sent < COUNT:
            root.send(Run(sent, ()))
            leaf.send(Ready(sent, 1, ()))
            other.send(Ready(sent, 2, ()))
            sent += 1
        if time.monotonic() >= next_trouble and troubles < 20:
            trouble(job.middleman)
            troubles += 1
            next_trouble = time.monotonic() + 0.1
        for link, items in came.items():
            items.extend(receive(link))
        root.inbox.sleep(3)
    expected = [Run(number, ()) for number in range(COUNT)]
    assert came[leaf] == came[other] == [(0, run) for run in expected]
    for rank in (1, 2):
        assert [item for item in came[root] if item[0] == rank] == [(rank, Ready(n, rank, ())) for n in range(COUNT)]
    assert len(job.middleman.recorded) > 5  # connections; there were two


def test_an_end_arrives_although_the_connection_ends_with_it(job: Job3) -> None:
    root, *leaves = job.links
    job.middleman.cut()
    root.send(LEFT)
    for leaf in leaves:
        assert next_from(leaf, root, *leaves) == (0, LEFT)


def test_silence_is_a_loss_on_both_sides(job: Job3) -> None:
    root, leaf, other = job.links
    job.middleman.hold()
    lost = [next_from(link, *job.links) for link in (root, leaf, other)]
    assert [type(item) for item in lost] == [Lost] * 3
    assert [item.rank for item in lost[1:] if isinstance(item, Lost)] == [0, 0]
    for item in lost[1:]:
        assert isinstance(item, Lost)
        assert "its heartbeats stopped for 3.0 s" in item.cause  # nobody answers, and the port is open


def test_a_short_silence_is_none(job: Job3) -> None:
    root, leaf, other = job.links
    job.middleman.hold()
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        assert [item for link in job.links for item in receive(link)] == []
        root.inbox.sleep(20)
    job.middleman.let()
    leaf.send(Ready(0, 1, ()))
    assert next_from(root, leaf, other) == (1, Ready(0, 1, ()))


@pytest.mark.parametrize("is_upwards", [True, False], ids=["to the root", "from the root"])
def test_a_frame_that_never_passes_ends_the_attempts_on_both_sides(job: Job3, is_upwards: bool) -> None:
    root, leaf, other = job.links
    job.middleman.flip_large()
    if is_upwards:
        leaf.send(Ready(0, 1 << 20_000, ()))
    else:
        root.send(Run(0, (Batch(1 << 20_000, ()),)))
    refused = None
    lost: list[Lost] = []
    deadline = time.monotonic() + PATIENCE_S
    while (refused is None or not lost) and time.monotonic() < deadline:
        lost += [item for item in receive(root) if isinstance(item, Lost)]
        root.inbox.sleep(20)
        try:
            receive(leaf)
        except Refused as error:
            refused = error
        with contextlib.suppress(Refused):
            receive(other)
    why = "30 connections in a row between rank 0 and rank 1 ended before a control frame had passed"
    assert why in str(refused)
    assert any(item.rank == 1 and why in item.cause for item in lost)


def test_what_was_recorded_cannot_be_played_again(job: Job3) -> None:
    root, leaf, other = job.links
    leaf.send(Ready(0, 1, ()))
    assert next_from(root, leaf, other) == (1, Ready(0, 1, ()))
    for recorded in list(job.middleman.recorded):
        with socket.create_connection(split(job.middleman.address), timeout=PATIENCE_S) as replay:
            replay.sendall(recorded)
            while replay.recv(4096):  # what the root says to it, until it hangs up
                pass
    leaf.send(Ready(1, 1, ()))
    assert next_from(root, leaf, other) == (1, Ready(1, 1, ()))

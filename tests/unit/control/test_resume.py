"""Control links across hosts while connections are cut, corrupted, held back, replayed and claimed by others."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hvdlite.control import liveness_probe
from hvdlite.control.greeting import Refused
from hvdlite.control.link import ControlLink, Lost
from hvdlite.negotiation.messages import Batch, Ready, Run
from hvdlite.net.listening import split
from tests.harness.patience import PATIENCE_S
from tests.unit.links import LEFT, close, next_from, receive, zmq_links
from tests.unit.middleman import Middleman

COUNT = 600


class Job3:
    """Three links of one job, the leaves' through a man in the middle. ``values`` are settings."""

    def __init__(self, **values: Any) -> None:
        self.middlemen: list[Middleman] = []
        self.links: list[ControlLink] = zmq_links(self._through, **values)

    @property
    def middleman(self) -> Middleman:
        return self.middlemen[0]

    def _through(self, address: str) -> str:
        self.middlemen.append(Middleman(address))
        return self.middleman.address


@contextlib.contextmanager
def _opened(**values: Any) -> Iterator[Job3]:
    job = Job3(**values)
    with job.middleman:
        yield job
        close(job.links)


@pytest.fixture
def job() -> Iterator[Job3]:
    with _opened() as job:
        yield job


@pytest.fixture
def patient() -> Iterator[Job3]:
    """With links that take no peer for lost as long as a test may wait."""
    with _opened(peer_timeout=2 * PATIENCE_S) as job:
        yield job


@pytest.fixture
def brief_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections end after a second and a half of silence, although peers are not lost for long."""
    monkeypatch.setattr(liveness_probe, "_SILENCE", 1.5 / (2 * PATIENCE_S))


@pytest.mark.parametrize("trouble", [Middleman.cut, Middleman.flip], ids=["cut", "flipped"])
@pytest.mark.usefixtures("brief_silence")
def test_messages_arrive_once_and_in_order_over_connections_that_break(patient: Job3, trouble: Any) -> None:
    """Trouble comes when all have heard of each other since the last one: no connection is broken before it is made."""
    root, leaf, other = patient.links
    came: dict[ControlLink, list[Any]] = {root: [], leaf: [], other: []}
    sent = troubles = 0
    since: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while min(len(came[root]) // 2, len(came[leaf]), len(came[other])) < COUNT:
        assert time.monotonic() < deadline
        if sent < COUNT:
            root.send(Run(sent, ()))
            leaf.send(Ready(sent, 1, ()))
            other.send(Ready(sent, 2, ()))
            sent += 1
        now = [sum(item[0] == rank for item in came[root]) for rank in (1, 2)] + [len(came[leaf]), len(came[other])]
        if troubles < 20 and all(heard > before for heard, before in zip(now, since, strict=False)):
            trouble(patient.middleman)
            troubles += 1
            since = now
        for link, items in came.items():
            items.extend(receive(link))
        root.inbox.sleep(3)
    expected = [Run(number, ()) for number in range(COUNT)]
    assert came[leaf] == came[other] == [(0, run) for run in expected]
    for rank in (1, 2):
        assert [item for item in came[root] if item[0] == rank] == [(rank, Ready(n, rank, ())) for n in range(COUNT)]
    assert len(patient.middleman.recorded) > 5  # connections; there were two


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


@pytest.mark.usefixtures("brief_silence")
def test_a_short_silence_is_none(patient: Job3) -> None:
    """It ends connections, which are made again."""
    root, leaf, other = patient.links
    patient.middleman.hold()
    deadline = time.monotonic() + PATIENCE_S
    while any(link.due is None for link in patient.links):
        assert time.monotonic() < deadline
        assert [item for link in patient.links for item in receive(link)] == []
        root.inbox.sleep(20)
    patient.middleman.let()
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

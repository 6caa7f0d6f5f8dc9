"""Damaged frames of the job itself at all of its ports, many in a row, while it runs."""

from __future__ import annotations

import itertools
import os
import random
import socket
import time
from contextlib import ExitStack, suppress

import pytest

from tests.harness.patience import PATIENCE_S
from tests.security.damage import damaged
from tests.security.garbage import recorded_frames
from tests.security.sniffer import capture
from tests.security.victim import Victim, is_dropped, victim

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="capturing packets needs root")

FRAMES_A_CONNECTION = 500
MAY_GROW_BYTES = 10 << 20


def assail(address: tuple[str, int], valid: list[bytes], count: int) -> None:
    """Sends so many frames: each connection begins as a good one, and goes on with damaged ones."""
    chance = random.Random(count)
    frames = damaged(valid, count)
    while batch := list(itertools.islice(frames, FRAMES_A_CONNECTION)):
        good = chance.randrange(4)
        with socket.create_connection(address, timeout=PATIENCE_S) as attack, suppress(ConnectionError):
            attack.sendall(b"".join(valid[:good] + batch))


def check_that_nothing_changes(frames: int) -> None:
    with ExitStack() as stack:
        with capture() as seen:
            job = stack.enter_context(victim())
        addresses = job.tcp_listeners()
        before = job.descriptors()
        recorded = recorded_frames(seen, {port for _, port in addresses})
        attacked = [address for address in addresses if recorded[address[1]]]
        assert len(attacked) >= 3  # the control port and the two data ports of the ring
        for address in attacked:
            assail(address, recorded[address[1]], frames // len(attacked) + 1)
        with socket.create_connection(attacked[0], timeout=PATIENCE_S) as last:
            assert is_dropped(last, PATIENCE_S)
        assert settles(job, before)
        reports = job.end()
    assert max(report.grown for report in reports) < MAY_GROW_BYTES


def settles(job: Victim, descriptors: int) -> bool:
    """Returns true as soon as the ranks have no more than ``descriptors`` open, false if they keep more."""
    deadline = time.monotonic() + PATIENCE_S
    while (has_more := job.descriptors() > descriptors) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not has_more


def test_a_hundred_thousand_damaged_frames_change_nothing() -> None:
    check_that_nothing_changes(100_000)


@pytest.mark.faults
def test_a_million_damaged_frames_change_nothing() -> None:
    check_that_nothing_changes(1_000_000)

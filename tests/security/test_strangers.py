"""Strangers at every port and socket of a job: dropped in time, at no cost to the job."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.harness.patience import PATIENCE_S
from tests.security.openings import openings
from tests.security.victim import Victim, is_dropped, victim

MAY_GROW_BYTES = 10 << 20


@pytest.fixture(scope="module")
def running() -> Iterator[Victim]:
    with victim() as job:
        yield job
        assert max(report.grown for report in job.end()) < MAY_GROW_BYTES


def dial(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=PATIENCE_S)


@pytest.mark.parametrize("opening", openings(Path("unused")))
def test_what_does_not_prove_itself_is_dropped(running: Victim, tmp_path: Path, opening: str) -> None:
    canary = tmp_path / "canary"
    payload = openings(canary)[opening]
    with ExitStack() as stack:
        attacks = [stack.enter_context(dial(address)) for address in running.tcp_listeners()]
        assert attacks
        for attack in attacks:
            with suppress(ConnectionError):
                attack.sendall(payload)
        deadline = time.monotonic() + PATIENCE_S
        assert all(is_dropped(attack, max(0.1, deadline - time.monotonic())) for attack in attacks)
    assert not canary.exists()


def test_unix_sockets_admit_nobody_without_the_token(running: Victim, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for address in running.unix_listeners():
        for payload in filter(None, openings(canary).values()):
            for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
                with socket.socket(socket.AF_UNIX, kind) as attack, suppress(ConnectionError, OSError):
                    attack.settimeout(1.0)
                    attack.connect("\0" + address)
                    attack.sendall(payload[:4096])
    assert not canary.exists()


def test_a_thousand_idle_connections_are_dropped_and_leave_no_descriptor(running: Victim) -> None:
    before = running.descriptors()
    addresses = running.tcp_listeners()
    with ExitStack() as stack:
        idle = [stack.enter_context(dial(addresses[turn % len(addresses)])) for turn in range(1000)]
        deadline = time.monotonic() + PATIENCE_S
        assert all(is_dropped(attack, max(0.1, deadline - time.monotonic())) for attack in idle)
    deadline = time.monotonic() + PATIENCE_S
    while running.descriptors() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running.descriptors() <= before

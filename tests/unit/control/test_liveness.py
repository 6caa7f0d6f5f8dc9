"""Verdicts on a peer whose connection has ended, and when they come."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hvdlite.control.liveness_probe import LivenessListener, LivenessProbe
from hvdlite.net.listening import endpoint
from hvdlite.settings import Settings
from tests.harness.patience import PATIENCE_S


@contextmanager
def ended() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield endpoint("127.0.0.1", port)


@contextmanager
def stopped() -> Iterator[str]:
    """The kernel accepts, the process does not."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield endpoint("127.0.0.1", server.getsockname()[1])


@contextmanager
def cut_off() -> Iterator[str]:
    """A listener whose queue is full answers nobody, as a host does that cannot be reached."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, socket.create_connection(server.getsockname()):
        yield endpoint("127.0.0.1", server.getsockname()[1])


@contextmanager
def well() -> Iterator[str]:
    listener = LivenessListener("127.0.0.1", None)
    is_over = threading.Event()

    def live() -> None:
        while not is_over.wait(0.01):
            listener.drop_callers()

    thread = threading.Thread(target=live)
    thread.start()
    yield listener.endpoint
    is_over.set()
    thread.join()
    listener.close()


@pytest.mark.parametrize(
    ("state", "cause", "earliest_s"),
    [
        (ended, "its process ended", 0.0),
        (stopped, r"its heartbeats stopped for 3\.0 s", 1.4),
        (cut_off, r"its host could not be reached for 3\.0 s", 1.4),
        (well, r"not re-established within \d+\.\d s, although its process ran", 2.4),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_cause_is_found_and_not_too_early(state: object, cause: str, earliest_s: float) -> None:
    with state() as address:  # type: ignore[operator]
        began = time.monotonic()
        probe = LivenessProbe(address, Settings())
        while (found := probe.look()) is None:
            time.sleep(max(0.0, probe.due - time.monotonic()))
        took_s = time.monotonic() - began
        probe.close()
    assert re.search(cause, found)
    assert took_s >= earliest_s


def test_a_host_that_does_not_answer_is_called_anew_every_second() -> None:
    """The kernel would repeat the first call after 3 s, which may be too late for a network that is back sooner."""
    with cut_off() as address:
        probe = LivenessProbe(address, Settings(peer_timeout=6.0))
        calls: list[object] = []
        while len(calls) < 3:
            assert probe.look() is None
            if probe._probe is not None and probe._probe not in calls:
                calls.append(probe._probe)
            time.sleep(max(0.0, probe.due - time.monotonic()))
        probe.close()


def test_a_liveness_listener_drops_whoever_calls_and_reads_nothing() -> None:
    listener = LivenessListener("127.0.0.1", None)
    port = int(listener.endpoint.rpartition(":")[2])
    callers = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(50)]
    for caller in callers:
        caller.shutdown(socket.SHUT_WR)
    listener.drop_callers()
    for caller in callers:
        assert caller.recv(1) == b""
        caller.close()
    listener.drop_callers()  # nobody is there
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)

"""Peers with the key of another job, or with none, at the ports of a job that speak ZeroMQ."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from hvdlite.members.membership import Host, Membership
from hvdlite.net import curve
from hvdlite.rendezvous.job import Job
from tests.harness.patience import PATIENCE_S
from tests.security.victim import Victim, victim

GREETING_BYTES = 64
FAILURES = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
ENDINGS = FAILURES | zmq.EVENT_DISCONNECTED


def mechanism_of(address: tuple[str, int]) -> bytes | None:
    """Returns the listener's ZeroMQ security mechanism, or None if it hangs up on a ZeroMQ greeting."""
    with socket.create_connection(address, timeout=PATIENCE_S) as probe:
        probe.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32))
        greeting = b""
        try:
            while len(greeting) < GREETING_BYTES and (piece := probe.recv(GREETING_BYTES)):
                greeting += piece
        except ConnectionError:
            return None
    speaks_it = len(greeting) == GREETING_BYTES and greeting[:1] == b"\xff"
    return greeting[12:32].rstrip(b"\0") if speaks_it else None


def _no_key(peer: zmq.Socket[Any]) -> None:
    pass


def _key_of_another_job(peer: zmq.Socket[Any]) -> None:
    curve.dial(peer, secrets.token_bytes(32))


def mechanisms(job: Victim) -> dict[tuple[str, int], bytes]:
    """The security mechanisms of all listeners that speak ZeroMQ's protocol."""
    listeners = job.tcp_listeners()
    with ThreadPoolExecutor(len(listeners)) as pool:  # some take seconds to hang up
        found = dict(zip(listeners, pool.map(mechanism_of, listeners), strict=True))
    return {address: mechanism for address, mechanism in found.items() if mechanism is not None}


def test_a_wrong_key_is_refused() -> None:
    with victim() as job:
        speaking = mechanisms(job)
        assert set(speaking.values()) == {b"CURVE"}
        for address in speaking:
            for prepare in (_no_key, _key_of_another_job):
                check_refused(address, prepare)
        job.end()


def check_refused(address: tuple[str, int], prepare: Callable[[zmq.Socket[Any]], None]) -> None:
    """Fails if a connection with this key does not end, or something comes over it."""
    context = zmq.Context()
    peer = context.socket(zmq.DEALER)
    monitor = peer.get_monitor_socket(ENDINGS)
    try:
        peer.linger = 0
        prepare(peer)
        peer.connect(f"tcp://{address[0]}:{address[1]}")
        peer.send(b"let me in")
        assert monitor.poll(1000 * PATIENCE_S), "the connection stands"
        assert recv_monitor_message(monitor)["event"] & ENDINGS
        assert not peer.poll(0)
    finally:
        peer.disable_monitor()
        monitor.close(0)
        peer.close()
        context.term()


def test_who_has_the_keys_of_the_job_and_is_none_of_its_ranks_changes_nothing() -> None:
    with victim() as job:
        world = Membership(0, (0,), (Host("", ""),), 0, Job("same", job.secret()).key("world"))
        context = zmq.Context()
        try:
            for (ip, port), mechanism in mechanisms(job).items():
                for payload in (b"", b"let me in", bytes(4096)):
                    peer: zmq.Socket[bytes] = context.socket(zmq.DEALER)
                    peer.linger = 500
                    curve.dial(peer, world.key_for("control"))
                    peer.connect(f"tcp://{ip}:{port}")
                    peer.send(payload)
                    assert mechanism == b"CURVE"
                    assert not peer.poll(300)
                    peer.close()
        finally:
            context.destroy(linger=0)
        job.end()

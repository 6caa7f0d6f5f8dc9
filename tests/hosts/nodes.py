"""Nodes of a job on this host: hvdrun is started for each, and they find each other over the loopback."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hvdlite.launcher.nodes.records import Channel, Record, key_of
from hvdlite.net.handshake import Callee
from hvdlite.net.handshake_io import HandshakeIO
from tests.harness.patience import LAST_RESORTS, PATIENCE_S, until
from tests.launcher.hvdrun import COMMAND, read_until

KEY = secrets.token_hex(32)
WAIT = ("sh", "-c", "echo $$ > $FOLDER/pid.$RANK; echo ready; exec sleep 600")


class Ended(NamedTuple):
    """How hvdrun ended on one node."""

    code: int
    out: str
    err: str


class Node(subprocess.Popen[bytes]):
    """hvdrun on one node; killed at the end if a test failed to end it."""

    def rest(self) -> Ended:
        """Waits for its end; returns what had not been read yet."""
        out, err = self.communicate(timeout=PATIENCE_S)
        return Ended(self.returncode, out.decode(), err.decode())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return port_of(probe)


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def node(rank: int, count: int, port: int, *arguments: str, **options: Any) -> Node:
    """Starts node ``rank`` of ``count``, of which node 0 listens at ``port``, by default with one rank."""
    place = ("--node-rank", str(rank), "--nnodes", str(count), "--master", f"localhost:{port}")
    return start((*place, "-ppn", "1", *arguments), **options)


def start(
    arguments: Sequence[str],
    environ: Mapping[str, str] | None = None,
    *,
    container: Sequence[str] = (),
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
) -> Node:
    """Starts hvdrun, inside of ``container``, with the key of the nodes in its environment."""
    return Node(
        [*container, *COMMAND, *arguments],
        env={**os.environ, **LAST_RESORTS, "HVDLITE_SECRET": KEY, **(environ or {})},
        cwd=cwd,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@contextmanager
def ending(*started: Node) -> Iterator[None]:
    """Kills at the end those of ``started`` that still run."""
    try:
        yield
    finally:
        for each in started:
            if each.poll() is None:
                each.kill()
            each.communicate()


@contextmanager
def job(*arguments: str, count: int = 2, environ: Mapping[str, str] | None = None) -> Iterator[list[Node]]:
    """A job of ``count`` nodes, each of which is started with ``arguments``."""
    port = free_port()
    started = [node(rank, count, port, *arguments, environ=environ) for rank in range(count)]
    with ending(*started):
        yield started


def run(*arguments: str, count: int = 2, environ: Mapping[str, str] | None = None) -> list[Ended]:
    """The same to its end; returns how each node ended."""
    with job(*arguments, count=count, environ=environ) as started:
        return [each.rest() for each in started]


@contextmanager
def in_place_of_node_0() -> Iterator[tuple[Channel, Node]]:
    """A node that calls the test in the role of node 0, and has introduced itself."""
    with socket.create_server(("127.0.0.1", 0)) as place, ending(caller := node(1, 2, port_of(place), "true")):
        place.settimeout(PATIENCE_S)
        connection, _ = place.accept()
        with connection:
            connection.setblocking(False)
            handshake = HandshakeIO(connection, Callee(key_of(KEY), 0, 0, 0), time.monotonic() + PATIENCE_S)
            until(handshake.go_on)
            handshake.send(handshake.party.welcome(0))
            channel = Channel(connection, handshake.party.keys, is_caller=False)
            until(lambda: [kind for kind, _ in channel.receive()] == [Record.INTRODUCTION])
            yield channel, caller


def ready(first: Node, ranks: int = 2) -> None:
    """Waits until each rank, whose output is on node 0, has written so."""
    assert first.stdout is not None
    read_until(first.stdout.fileno(), lambda found: found.count(b"ready\n") == ranks)

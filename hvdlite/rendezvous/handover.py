"""The rendezvous of ranks of one host that share only the name of their job.

Rank 0 listens at a name derived from the job's, and sends a new random key and the address of its rendezvous server to
each other rank. Both sides check the other's user with the kernel, so they need no earlier key. Only rank 0 counts the
inits, because a rank that was interrupted in one may not know whether it counted.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from hvdlite.errors import HorovodInternalError
from hvdlite.host.hostid import network_namespace
from hvdlite.host.proc import pids
from hvdlite.net.listener import tells_users_apart
from hvdlite.net.local_listener import LocalListener, say_hello
from hvdlite.net.poll import wait_readable
from hvdlite.net.untrusted import parse
from hvdlite.rendezvous.client import GRACE_S, Meeting, absent, refuse
from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.server import RendezvousServer
from hvdlite.scope import Scope
from hvdlite.settings import Start

_PACKET_BYTES: Final = 1 << 20  # room for many missing ranks
_RETRY_S: Final = 0.02
_LOOK_S: Final = 1.0
_PLACE: Final = re.compile(rb"([0-9]{1,9}) ([0-9]{1,9})")


@contextmanager
def meet_on_one_host(start: Start, number: int, scope: Scope) -> Iterator[Meeting]:
    """The meeting of the ``number``-th init, served by rank 0. Raises HorovodInternalError if ranks are missing."""
    if not tells_users_apart():
        raise HorovodInternalError(
            f"rank {start.rank} runs as a user that its user namespace does not map, so it cannot tell the ranks of "
            "this job from other processes. Map the user (unshare --map-root-user), start them with hvdrun, or give "
            "all of them HVDLITE_COORDINATOR=HOST:PORT of rank 0 and HVDLITE_SECRET"
        )
    name = hashlib.blake2b(f"{os.geteuid()} {start.job}".encode(), digest_size=16)
    address, token = f"hvdlite-meeting-{name.hexdigest()}", name.digest()
    if start.rank > 0:
        keys = _ask(start, address, token, scope)
        yield Meeting(Job(keys["job"], keys["secret"]), keys["rendezvous"], "did rank 0 fail? Look at its output.")
        return
    job = Job.create()
    with RendezvousServer(job, start.size, only=number) as server:
        _hand_out({"job": job.name, "secret": job.secret, "rendezvous": server.address}, start, address, token, scope)
        yield Meeting(job, server.address, "another thread of this process has failed.")


def _hand_out(keys: Mapping[str, str], start: Start, address: str, token: bytes, scope: Scope) -> None:
    """Sends ``keys`` to all other ranks once all have come; after the time-out, sends the list of missing ranks."""
    began = time.monotonic()
    with _listen(start.job, address, token) as listener, ExitStack() as stack:
        sockets: dict[int, socket.socket] = {}
        answer: Mapping[str, Any] = keys
        try:
            for sock, greeting in listener.admit(scope):
                stack.enter_context(sock)
                if (place := _PLACE.fullmatch(greeting)) is None:
                    sock.close()
                    continue
                rank, size = map(int, place.groups())
                if size != start.size or not 0 < rank < size or rank in sockets:
                    _send(sock, {"error": _complaint(rank, size, start.size)})
                    continue
                sockets[rank] = sock
                if len(sockets) == start.size - 1:
                    break
        except TimeoutError:
            answer = {"missing": [rank for rank in range(1, start.size) if rank not in sockets]}
        for sock in sockets.values():
            _send(sock, answer)
    refuse(answer, 0, time.monotonic() - began)


def _listen(job: str, address: str, token: bytes) -> LocalListener:
    try:
        return LocalListener(token, address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    raise HorovodInternalError(
        f"another process, perhaps another user's, already serves job {job!r}. Either two processes have rank 0 or two "
        "jobs share a name: set a different HVDLITE_JOB for each job."
    )


def _complaint(rank: int, size: int, expected: int) -> str:
    if size != expected or rank >= size:
        return f"rank {rank} of {size} is not of this job of {expected} ranks"
    return f"rank {rank} is present already; two processes have the same rank"


def _send(sock: socket.socket, answer: Mapping[str, Any]) -> None:
    with suppress(OSError):  # that rank has ended; the others learn of it when they connect to each other
        sock.send(json.dumps(answer).encode())


def _ask(start: Start, address: str, token: bytes, scope: Scope) -> dict[str, str]:
    """Waits for rank 0's listener and for all other ranks. Returns the keys that rank 0 then sends."""
    began = time.monotonic()
    greeting = f"{start.rank} {start.size}".encode()
    with _call_repeatedly(start.rank, address, token, greeting, scope) as sock:
        try:
            wait_readable(sock, scope.later(GRACE_S))
            packet = sock.recv(_PACKET_BYTES)
        except OSError:
            packet = b""
    if not packet:
        raise HorovodInternalError(
            f"rank {start.rank} lost its connection to rank 0 in init(). Look at rank 0's output."
        )
    answer = None
    with suppress(ValueError):
        answer = parse(packet)
    if not isinstance(answer, dict):
        raise HorovodInternalError(f"rank {start.rank} got no valid answer from rank 0 in init(); start the job anew.")
    refuse(answer, start.rank, time.monotonic() - began)
    return answer


def _call_repeatedly(rank: int, address: str, token: bytes, greeting: bytes, scope: Scope) -> socket.socket:
    began = look_at = time.monotonic()
    while True:
        try:
            return say_hello(address, token, greeting, scope)
        except OSError:
            if scope.is_over:
                raise absent([0], rank, scope.deadline - began) from None
        if time.monotonic() >= look_at:
            if _is_elsewhere(address):
                raise HorovodInternalError(
                    f"rank {rank} is in another network namespace than rank 0 (unshare -n, ip netns exec, a container "
                    "of its own), so they cannot meet; start all ranks of a host in one"
                )
            look_at = time.monotonic() + _LOOK_S
        time.sleep(min(_RETRY_S, scope.pause_s()))  # the kernel has no notification for a new name


def _is_elsewhere(address: str) -> bool:
    """True if the listener ``address`` is in another network namespace of this host, out of reach of this rank."""
    seen = {network_namespace()}
    for pid in pids():
        with suppress(OSError, HorovodInternalError):  # it has ended, or belongs to another user
            if (namespace := network_namespace(pid)) not in seen:
                seen.add(namespace)
                if f"@{address}" in Path(f"/proc/{pid}/net/unix").read_text():
                    return True
    return False

"""Collects one card from every rank and gives all of them to each: the only thing a launcher serves to its workers.

Where hvdrun has not started the job, rank 0 serves it while it is in ``init``.

Every ``init`` of the job is one round. A rank sends ``{"round", "rank", "size", "timeout_s", "card"}`` and gets
``{"cards": [...]}`` in rank order once all ranks of the round have come, ``{"missing": [ranks]}`` when the timeout of
one passes first, or ``{"error": text}``. Frames are JSON, capped, and CURVE admits only peers with the job's key.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, NamedTuple, cast

import zmq

from hvdlite.rendezvous.job import Job

MAX_FRAME_BYTES = 64 << 10
_MAX_TIMEOUT_S: Final = 1e6


class Request(NamedTuple):
    """What a rank sends. ``card`` is JSON still, as it goes to the others."""

    round: int
    rank: int
    size: int
    timeout_s: float
    card: str


def read_request(frame: bytes) -> Request:
    """The request in ``frame``. Raises ValueError if it is none."""
    try:
        message = json.loads(frame)
        number, rank, size, timeout_s = (message[name] for name in ("round", "rank", "size", "timeout_s"))
        if not (type(number) is type(rank) is type(size) is int and 0 <= timeout_s <= _MAX_TIMEOUT_S):
            raise ValueError("a number cannot be")
        return Request(number, rank, size, timeout_s, json.dumps(message["card"]))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None


@dataclass(slots=True)
class _Round:
    cards: dict[int, str] = field(default_factory=dict)
    waiting: dict[int, tuple[bytes, float]] = field(default_factory=dict)  # rank -> (peer, deadline)


class RendezvousServer:
    """Serves the rounds of one job of ``size`` ranks from a thread of its own until it is closed.

    ``address`` is what the workers need as ``HVDLITE_RENDEZVOUS``. By default it is an abstract Unix socket of this
    host, which leaves no file behind. Closing waits up to ``linger_s`` until answers are on their way. Raises ZMQError
    if ``address`` is taken, or not of this host.
    """

    def __init__(self, job: Job, size: int, address: str | None = None, linger_s: float = 1.0) -> None:
        self._size = size
        self._rounds: dict[int, _Round] = {}
        self._context = zmq.Context()
        self._router: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._router.linger = int(linger_s * 1000)
        self._router.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._router.setsockopt(zmq.HANDSHAKE_IVL, 5000)
        self._router.ipv6 = "[" in (address or "")
        job.serve(self._router)
        try:
            self._router.bind(address or f"ipc://@hvdlite-{job.name}-{secrets.token_hex(4)}")
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        self.address = cast(bytes, self._router.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
        self._stop: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        self._stopped: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        self._stop.bind("inproc://stop")
        self._stopped.connect("inproc://stop")
        self._thread = threading.Thread(target=self._serve, name="hvdlite-rendezvous", daemon=True)
        self._thread.start()

    def __enter__(self) -> RendezvousServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops serving and closes the address. May be called twice."""
        if not self._stop.closed:
            self._stop.send(b"")
            self._thread.join()
            self._stop.close(0)
            self._context.term()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._stopped, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(self._milliseconds_to_next_deadline()))
            if self._stopped in ready:
                break
            if self._router in ready:
                peer, *frames = self._router.recv_multipart()
                if len(frames) == 1:
                    self._receive(peer, frames[0])
            self._expire(time.monotonic())
        self._router.close()
        self._stopped.close(0)

    def _receive(self, peer: bytes, frame: bytes) -> None:
        try:
            number, rank, size, timeout_s, card = read_request(frame)
        except ValueError:
            self._reply(peer, {"error": "the request is malformed"})
            return
        if size != self._size or not 0 <= rank < size:
            self._reply(peer, {"error": f"rank {rank} of {size} is not of this job of {self._size} ranks"})
            return
        current = self._rounds.setdefault(number, _Round())
        if rank in current.cards:
            self._reply(peer, {"error": f"rank {rank} is present already; two processes have the same HVDLITE_RANK"})
            return
        current.cards[rank] = card
        current.waiting[rank] = (peer, time.monotonic() + timeout_s)
        if len(current.cards) == self._size:
            self._finish(number, current)

    def _finish(self, number: int, current: _Round) -> None:
        roster = f'{{"cards": [{", ".join(current.cards[rank] for rank in range(self._size))}]}}'.encode()
        for peer, _ in current.waiting.values():
            self._router.send_multipart([peer, roster])
        del self._rounds[number]

    def _expire(self, now: float) -> None:
        for number, current in list(self._rounds.items()):
            if any(deadline <= now for _, deadline in current.waiting.values()):
                missing = [rank for rank in range(self._size) if rank not in current.cards]
                for peer, _ in current.waiting.values():
                    self._reply(peer, {"missing": missing})
                del self._rounds[number]

    def _milliseconds_to_next_deadline(self) -> int | None:
        deadlines = [deadline for current in self._rounds.values() for _, deadline in current.waiting.values()]
        return int(max(0.0, min(deadlines) - time.monotonic()) * 1000) + 1 if deadlines else None

    def _reply(self, peer: bytes, message: Any) -> None:
        self._router.send_multipart([peer, json.dumps(message).encode()])

"""Collects one offer from every rank and sends all offers to each: the only service of a launcher to its ranks.

If hvdrun did not start the job, rank 0 runs the server while it is in ``init``.

Each time that all ranks come together begins an epoch, which the server numbers, and which has a few rounds. A rank
sends ``{"epoch", "round", "rank", "size", "timeout_s", "offer"}`` and gets ``{"epoch", "offers": [...]}`` in rank order
once all ranks of the round have come, ``{"missing": [ranks]}`` when the timeout of one passes first, or
``{"error": text}``. A rank that begins asks for NEXT_EPOCH. ``{"over": epoch}`` tells it that this server serves only
one, which has begun. A rank that no longer waits for its answer counts as not come. A rank that leaves the epoch says
why in place of an offer, in the round LEAVING, or asks for the next epoch; ranks that wait in a round of this epoch, or
come to one, are told so. WATCHING is a round in which a rank waits for nothing else. Questions and answers are capped
JSON in `hvdlite.net.calls`, which require the job's key.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple

from hvdlite.net.calls import Query, QueryServer
from hvdlite.net.entrance import Listener
from hvdlite.net.sockets import name_of
from hvdlite.observe.untrusted import parse
from hvdlite.rendezvous.client import LEAVING, NEXT_EPOCH, WATCHING
from hvdlite.rendezvous.job import Job

MAX_REQUEST_BYTES = 64 << 10
_MAX_TIMEOUT_S: Final = 1e6


class Request(NamedTuple):
    """One rank's request. ``offer`` stays JSON, as it goes to the others."""

    epoch: int
    round: int
    rank: int
    size: int
    timeout_s: float
    offer: str


def read_request(question: bytes | bytearray) -> Request:
    """Parses ``question``. Raises ValueError if it is no request."""
    try:
        message = parse(question)
        epoch, number, rank, size = numbers = [message[name] for name in ("epoch", "round", "rank", "size")]
        timeout_s = message["timeout_s"]
        if not (all(type(each) is int for each in numbers) and 0 <= timeout_s <= _MAX_TIMEOUT_S):
            raise ValueError("a number is invalid")
        return Request(epoch, number, rank, size, timeout_s, json.dumps(message["offer"]))
    except (KeyError, TypeError) as error:
        raise ValueError(str(error)) from None


@dataclass(slots=True)
class _Waiting:
    """A rank that has come, and the time at which it gives up."""

    offer: str
    query: Query
    deadline: float


class RendezvousServer:
    """Serves the epochs of one job from a thread of its own until it is closed. ``size`` ranks come together.

    It takes over ``listener``, by default an abstract Unix socket of this host, which leaves no file behind;
    ``address`` is the ranks' ``HVDLITE_RENDEZVOUS``. Epochs are numbered from 0, or there is ``only``
    one. Closing waits up to ``linger_s`` until answers have been sent. ``was_called`` is True once a rank has come.
    """

    def __init__(
        self,
        job: Job,
        size: int,
        listener: Listener | None = None,
        only: int | None = None,
        linger_s: float = 1.0,
    ) -> None:
        self._size = size
        self._linger_s = linger_s
        self._only = only
        self._next = only or 0
        self._rounds: dict[tuple[int, int], dict[int, _Waiting]] = {}  # by epoch and round, then by rank
        self.was_called = False
        self._left = ""  # the reason with which a rank has left the current epoch
        listener = listener or Listener.within_host(f"hvdlite-{job.name}-{secrets.token_hex(4)}")
        self.address = name_of(listener)
        self._server = QueryServer(listener, job.key("rendezvous"), MAX_REQUEST_BYTES)
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="hvdlite-rendezvous", daemon=True)
        self._thread.start()

    def __enter__(self) -> RendezvousServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def expect(self, size: int) -> None:
        """Sets the number of ranks of later epochs. The current epoch is over, and its ranks are refused."""
        self._size = size

    def close(self) -> None:
        """Stops serving and closes the address. May be called twice."""
        if not self._is_closing:
            self._is_closing = True
            self._server.wake()
            self._thread.join()
            self._server.close(self._linger_s)

    def _serve(self) -> None:
        while not self._is_closing:
            for query, question in self._server.turn(self._next_deadline()):
                self._receive(query, question)
            self._forget_who_left()
            self._expire(time.monotonic())

    def _receive(self, query: Query, question: bytearray) -> None:
        self.was_called = True
        try:
            epoch, number, rank, size, timeout_s, offer = read_request(question)
        except ValueError:
            _reply(query, {"error": "the request is malformed"})
            return
        if size != self._size or not 0 <= rank < size:
            _reply(query, {"error": f"rank {rank} of {size} is not of this job of {self._size} ranks"})
            return
        if epoch == NEXT_EPOCH:
            self._leave(f"rank {rank} was interrupted in init() and calls it again")
            if self._only is not None and self._next > self._only:
                _reply(query, {"over": self._only})
                return
            epoch, number = self._next, 0
        elif epoch != self._next - 1:
            _reply(query, {"error": f"epoch {epoch} of this job is over; call init() again on all ranks"})
            return
        elif number == LEAVING:
            self._leave(f"rank {rank} has left: {json.loads(offer)!s:.200}")
            _reply(query, {"error": self._left})
            return
        elif self._left:
            _reply(query, {"error": self._left})
            return
        current = self._rounds.setdefault((epoch, number), {})
        if rank in current and not current[rank].query.has_ended:
            _reply(query, {"error": f"rank {rank} is present already; two processes have the same HVDLITE_RANK"})
            return
        current[rank] = _Waiting(offer, query, time.monotonic() + timeout_s)
        if len(current) == self._size and number != WATCHING:
            self._finish(epoch, number)

    def _finish(self, epoch: int, number: int) -> None:
        current = self._rounds.pop((epoch, number))
        if epoch == self._next:
            self._next += 1
            self._left = ""
        offers = ", ".join(current[rank].offer for rank in range(self._size))
        roster = f'{{"epoch": {epoch}, "offers": [{offers}]}}'.encode()
        for waiting in current.values():
            waiting.query.answer(roster)

    def _leave(self, how: str) -> None:
        """Ends the current epoch, unless it has ended, and sends ``how`` to the ranks that wait in it."""
        self._left = self._left or f"{how}; call it again on all ranks"
        for key, current in list(self._rounds.items()):
            if key[0] < self._next:
                for waiting in current.values():
                    _reply(waiting.query, {"error": self._left})
                del self._rounds[key]

    def _forget_who_left(self) -> None:
        for current in self._rounds.values():
            for rank in [rank for rank, waiting in current.items() if waiting.query.has_ended]:
                del current[rank]

    def _expire(self, now: float) -> None:
        for number, current in list(self._rounds.items()):
            if any(waiting.deadline <= now for waiting in current.values()):
                missing = [rank for rank in range(self._size) if rank not in current]
                for waiting in current.values():
                    _reply(waiting.query, {"missing": missing})
                del self._rounds[number]

    def _next_deadline(self) -> float:
        waiting = (waiting for current in self._rounds.values() for waiting in current.values())
        return min((each.deadline for each in waiting), default=float("inf"))


def _reply(query: Query, message: Any) -> None:
    query.answer(json.dumps(message).encode())

"""Serves the rendezvous of one job from a thread.

If hvdrun did not start the job, rank 0 runs the server while it is in ``init``. `hvdlite.rendezvous.roster` decides the
replies. Questions and answers are capped JSON in `hvdlite.net.calls`, which require the job's key.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterable
from types import TracebackType

from hvdlite.net.calls import Query, QueryServer
from hvdlite.net.listener import Listener
from hvdlite.net.sockets import name_of
from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.roster import Reply, Roster, read_arrival

MAX_REQUEST_BYTES = 64 << 10


class RendezvousServer:
    """Serves the epochs of one job of ``size`` ranks from a thread of its own until it is closed.

    It takes over ``listener``, by default an abstract Unix socket of this host, which leaves no file. ``address`` is
    the ranks' ``HVDLITE_RENDEZVOUS``. Epochs are numbered from 0, or there is ``only`` one. Closing waits up to
    ``linger_s`` until answers have been sent. ``was_called`` is True once a rank has come.
    """

    def __init__(
        self,
        job: Job,
        size: int,
        listener: Listener | None = None,
        only: int | None = None,
        linger_s: float = 1.0,
    ) -> None:
        self._linger_s = linger_s
        self._roster: Roster[Query] = Roster(size, lambda query: query.has_ended, only)
        self.was_called = False
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
        self._roster.expect(size)

    def close(self) -> None:
        """Stops serving and closes the address. May be called twice."""
        if not self._is_closing:
            self._is_closing = True
            self._server.wake()
            self._thread.join()
            self._server.close(self._linger_s)

    def _serve(self) -> None:
        while not self._is_closing:
            for query, question in self._server.turn(self._roster.due):
                self.was_called = True
                try:
                    arrival = read_arrival(question)
                except ValueError:
                    query.answer(json.dumps({"error": "the request is malformed"}).encode())
                else:
                    _send(self._roster.arrive(arrival, query, time.monotonic()))
            _send(self._roster.expire(time.monotonic()))


def _send(replies: Iterable[Reply[Query]]) -> None:
    for query, message in replies:
        query.answer(message.encode())

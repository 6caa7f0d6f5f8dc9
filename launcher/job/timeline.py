"""The timeline of all ranks: hvdrun takes their events, and writes them to one file, in a thread of its own.

Each question is the number of a rank, a line end, and events of that rank as they stand in a JSON array. What is not
that is not written. Its answer says what this host's clock shows, or that the timeline is over because the file cannot
be written.
"""

from __future__ import annotations

import json
import secrets
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from hvdlite.host.hostid import clock_id
from hvdlite.net.calls import Query, QueryServer
from hvdlite.net.listener import Listener
from hvdlite.net.sockets import name_of
from hvdlite.observe.timeline.file import MOST_BYTES, JsonArrayFile
from hvdlite.rendezvous.job import Job

_HEAD_BYTES: Final = 16
_INTERVAL_S: Final = 0.5
_SHARE: Final = 20  # a write that takes a second is followed by this many seconds without one
_MOST_WAITING: Final = 4 << 20  # bytes; beyond that it is written at once
_LINGER_S: Final = 1.0


class Timeline:
    """The file at ``path`` for ``size`` ranks, until it is closed. Raises OSError if it cannot be written.

    ``address`` is the ranks' ``HVDLITE_TIMELINE_ADDRESS``. ``say`` is called if the file cannot be written any more,
    and ``clock`` is that of the timeline.
    """

    def __init__(
        self,
        path: str,
        job: Job,
        size: int,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._path = path
        self._size = size
        self._say = say
        self._file: JsonArrayFile | None = JsonArrayFile(path)
        listener = Listener.within_host(f"hvdlite-{job.name}-timeline-{secrets.token_hex(4)}")
        self.address = name_of(listener)
        self._server = QueryServer(listener, job.key("timeline"), MOST_BYTES + _HEAD_BYTES)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._due = 0.0
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="hvdrun-timeline", daemon=True)
        self._thread.start()

    def __enter__(self) -> Timeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Writes what has come, and ends. May be called twice."""
        if not self._is_closing:
            self._is_closing = True
            self._server.wake()
            self._thread.join()

    def _serve(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])  # of leases; see JsonArrayFile
        while not self._is_closing:
            for call, question in self._server.turn(self._due if self._waiting else float("inf")):
                self._take(call, bytes(question))
            if self._waiting and (time.monotonic() >= self._due or self._waiting_bytes > _MOST_WAITING):
                self._write()
        self._server.close(_LINGER_S)
        if self._waiting:
            self._write()
        if self._file is not None:
            self._file.close()

    def _take(self, call: Query, question: bytes) -> None:
        head, _, events = question.partition(b"\n")
        try:
            rank = int(head)
            if not 0 <= rank < self._size:
                raise ValueError(f"there is no rank {rank}")
            if events:
                check_events(events, rank)
        except ValueError:
            call.hang_up()
            return
        if self._file is not None and events:
            self._waiting.append(events)
            self._waiting_bytes += len(events)
        answer = {"at": self._clock(), "clock": clock_id(), "is_over": self._file is None}
        call.answer(json.dumps(answer).encode())

    def _write(self) -> None:
        begun = time.monotonic()
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if self._file is None:
            return
        try:
            self._file.append(b",\n".join(waiting))
        except OSError as error:
            self._file.close()
            self._file = None
            self._say(f"the timeline {self._path} ends here, and the job continues without it: {error.strerror}")
        now = time.monotonic()
        self._due = now + max(_INTERVAL_S, _SHARE * (now - begun))


def check_events(events: bytes, rank: int) -> None:
    """Raises ValueError unless ``events`` are the inside of a JSON array of events of ``rank``."""
    try:
        found = json.loads(f"[{events.decode()}]", parse_constant=_refuse)
    except RecursionError:
        raise ValueError("they are nested too deeply") from None
    if not found:
        raise ValueError("there are none")
    for event in found:
        if type(event) is not dict or type(event.get("pid")) is not int or event["pid"] != rank:
            raise ValueError(f"that is no event of rank {rank}")


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")

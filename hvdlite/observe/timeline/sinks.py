"""Where the events of a rank go: to a file of its own, or to hvdrun, which writes one file for all ranks.

Each call to hvdrun (`hvdlite.net.calls`) is a question with events of one rank, and the answer has the time of hvdrun's
clock. Ranks of other hosts use it to convert their times to that clock.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final, Protocol

from hvdlite.host.hostid import clock_id
from hvdlite.net.calls import Unanswered, put
from hvdlite.observe.timeline.file import MOST_BYTES, JsonArrayFile
from hvdlite.scope import Scope

_ANSWER_S: Final = 30.0  # an overloaded hvdrun may be slow, and waiting costs the job nothing
_MOST_ANSWER: Final = 1024
_FIRST_SAMPLES: Final = 5
_DRIFT: Final = 1e-4  # of two clocks: twice that of a bad crystal


class Over(Exception):
    """The timeline has ended, and that was reported."""


class Sink(Protocol):
    """For one thread. ``name`` is its name in messages."""

    name: str

    def shift(self) -> float:
        """Returns what to add to a time of this host's monotonic clock for the timeline. Raises as `append`."""

    def append(self, events: bytes) -> None:
        """Takes events, separated by commas and line ends. Raises OSError if it cannot, and Over."""

    def close(self) -> None:
        """Ends."""


class OwnFile(JsonArrayFile):
    """A file of this rank's own, by its own clock."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.name = str(path)

    def shift(self) -> float:
        return 0.0


class Difference:
    """The difference between another host's clock and this host's, from questions and answers.

    The answer contains the other clock's time at some moment between question and answer. Half the time between them
    bounds the error, and clocks drift apart afterwards. The sample with the smallest sum of both counts. A time of this
    host's clock plus ``shift`` is the other clock's time, with an error of at most ``error_s``.
    """

    def __init__(self) -> None:
        self.shift = 0.0
        self._error_s = float("inf")
        self._at = 0.0

    def error_s(self, now: float) -> float:
        """Returns the largest error at ``now`` of this host's clock, in seconds."""
        return self._error_s + max(0.0, now - self._at) * _DRIFT

    def add(self, asked_at: float, answered_at: float, theirs: float) -> None:
        """Adds a sample: between two times of this host's clock the other clock showed ``theirs``."""
        error_s = (answered_at - asked_at) / 2
        if error_s <= self.error_s(answered_at):
            self.shift = theirs - (asked_at + answered_at) / 2
            self._error_s, self._at = error_s, answered_at


class HvdrunsFile:
    """The file that hvdrun writes, called ``name`` in messages. hvdrun listens at ``address`` and knows ``secret``."""

    def __init__(self, name: str, address: str, secret: bytes, rank: int) -> None:
        self.name = name
        self._address = address
        self._secret = secret
        self._rank = rank
        self._difference: Difference | None = Difference()  # None on hvdrun's host
        self._samples = _FIRST_SAMPLES

    def shift(self) -> float:
        while self._difference is not None and self._samples:
            self._samples -= 1
            self._ask(b"")
        self._samples = 1
        return 0.0 if self._difference is None else self._difference.shift

    def append(self, events: bytes) -> None:
        while events:
            end = len(events) if len(events) <= MOST_BYTES else events.rfind(b",\n", 0, MOST_BYTES)
            if end > 0:  # else one event is too long to be sent
                self._ask(events[:end])
            else:
                end = events.find(b",\n") % (len(events) + 1)
            events = events[end + 2 :]

    def close(self) -> None:
        """Does nothing: each call has a connection of its own."""

    def _ask(self, events: bytes) -> None:
        scope = Scope.of(_ANSWER_S)
        head = b"%d\n" % self._rank
        try:
            with put(self._address, self._secret, head, events, most=_MOST_ANSWER, scope=scope) as asked:
                answer = json.loads(asked.answer(scope))
        except (Unanswered, ValueError) as error:
            raise OSError(f"hvdrun does not take it: {error}") from None
        if answer.get("is_over"):
            raise Over
        if answer["clock"] == clock_id():
            self._difference = None
        elif self._difference is not None and not events:
            self._difference.add(asked.asked_at, time.monotonic(), answer["at"])

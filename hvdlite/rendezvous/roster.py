"""Which ranks have come to which round of which epoch: the rendezvous as a state machine, without clock or connection.

An epoch has a few rounds. A round is complete when all ranks have come to it; then each gets the offers of all. A rank
sends ``{"epoch", "round", "rank", "size", "timeout_s", "offer"}``. The reply is ``{"epoch", "offers": [...]}`` in rank
order, ``{"missing": [ranks]}`` when the timeout of one rank passes first, or ``{"error": text}``. A rank that calls
``init`` asks for NEXT_EPOCH; it gets ``{"over": epoch}`` if there is only one epoch, which has begun. A rank leaves an
epoch by asking for the next one, or by the round LEAVING with its reason as the offer. Ranks that wait in a round of
this epoch, or come to one, get that reason as an error. The round WATCHING never completes: a rank waits in it for such
an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from hvdlite.net.untrusted import parse

NEXT_EPOCH: Final = -1  # in place of the number of an epoch, which a rank in ``init`` does not know
LEAVING: Final = -1  # in place of the number of a round, as WATCHING
WATCHING: Final = -2
_MOST_TIMEOUT_S: Final = 1e6

C = TypeVar("C")


class Arrival(NamedTuple):
    """What a rank has sent. ``offer`` stays JSON, as it goes to the others."""

    epoch: int
    round: int
    rank: int
    size: int
    timeout_s: float
    offer: str


def read_arrival(question: bytes | bytearray) -> Arrival:
    """Parses ``question``. Raises ValueError if no rank can have sent it."""
    try:
        message = parse(question)
        epoch, number, rank, size = numbers = [message[name] for name in ("epoch", "round", "rank", "size")]
        timeout_s = message["timeout_s"]
        if not (all(type(each) is int for each in numbers) and 0 <= timeout_s <= _MOST_TIMEOUT_S):
            raise ValueError("a number is invalid")
        return Arrival(epoch, number, rank, size, timeout_s, json.dumps(message["offer"]))
    except (KeyError, TypeError) as error:
        raise ValueError(str(error)) from None


class Reply(NamedTuple, Generic[C]):
    """What to send to a caller: JSON."""

    caller: C
    message: str


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[C]):
    """A rank that has come to a round, and the time at which it gives up."""

    offer: str
    caller: C
    deadline: float


class Roster(Generic[C]):
    """The waiting ranks of one job of ``size``. Its methods return the replies that become due.

    ``C`` is the type of a caller. A caller that ``has_left`` no longer counts. Epochs are numbered from 0, or there is
    ``only`` one.
    """

    def __init__(self, size: int, has_left: Callable[[C], bool], only: int | None = None) -> None:
        self._size = size
        self._has_left = has_left
        self._only = only
        self._next = only or 0
        self._rounds: dict[tuple[int, int], dict[int, _Waiting[C]]] = {}  # by epoch and round, then by rank
        self._broken = ""  # why ranks of the current epoch cannot go on: one has left it

    def expect(self, size: int) -> None:
        """Sets the number of ranks of later epochs. The current epoch is over, and its ranks are refused."""
        self._size = size

    @property
    def due(self) -> float:
        """The time of the next `expire`."""
        return min(
            (each.deadline for waiting in self._rounds.values() for each in waiting.values()), default=float("inf")
        )

    def arrive(self, arrival: Arrival, caller: C, now: float) -> list[Reply[C]]:
        """Handles a message of a rank at ``now``."""
        epoch, number, rank, size, _, offer = arrival
        if size != self._size or not 0 <= rank < size:
            return [_refusal(caller, f"rank {rank} of {size} is not of this job of {self._size} ranks")]
        if epoch == NEXT_EPOCH:
            left = self._leave(f"rank {rank} was interrupted in init() and calls it again")
            if self._only is not None and self._next > self._only:
                return [*left, _reply(caller, {"over": self._only})]
            return left + self._join(self._next, 0, arrival, caller, now)
        if epoch != self._next - 1:
            return [_refusal(caller, f"epoch {epoch} of this job is over; call init() again on all ranks")]
        if number == LEAVING:
            left = self._leave(f"rank {rank} has left: {json.loads(offer)!s:.200}")
            return [*left, _refusal(caller, self._broken)]
        if self._broken:
            return [_refusal(caller, self._broken)]
        return self._join(epoch, number, arrival, caller, now)

    def expire(self, now: float) -> list[Reply[C]]:
        """Ends the rounds in which a rank's time is over at ``now``, and removes callers that have left."""
        replies: list[Reply[C]] = []
        for key, waiting in list(self._rounds.items()):
            for rank in [rank for rank, each in waiting.items() if self._has_left(each.caller)]:
                del waiting[rank]
            if any(each.deadline <= now for each in waiting.values()):
                missing = [rank for rank in range(self._size) if rank not in waiting]
                replies += [_reply(each.caller, {"missing": missing}) for each in waiting.values()]
                del self._rounds[key]
        return replies

    def _join(self, epoch: int, number: int, arrival: Arrival, caller: C, now: float) -> list[Reply[C]]:
        """Adds a rank to a round, and commits the round if it is complete."""
        waiting = self._rounds.setdefault((epoch, number), {})
        rank = arrival.rank
        if rank in waiting and not self._has_left(waiting[rank].caller):
            return [_refusal(caller, f"rank {rank} is present already; two processes have the same HVDLITE_RANK")]
        waiting[rank] = _Waiting(arrival.offer, caller, now + arrival.timeout_s)
        if len(waiting) < self._size or number == WATCHING:
            return []
        return self._commit(epoch, number)

    def _commit(self, epoch: int, number: int) -> list[Reply[C]]:
        """Completes a round. The first round begins the epoch; its ranks are the epoch's members."""
        waiting = self._rounds.pop((epoch, number))
        if epoch == self._next:
            self._next += 1
            self._broken = ""
        offers = ", ".join(waiting[rank].offer for rank in range(self._size))
        message = f'{{"epoch": {epoch}, "offers": [{offers}]}}'
        return [Reply(each.caller, message) for each in waiting.values()]

    def _leave(self, how: str) -> list[Reply[C]]:
        """Ends the current epoch, unless it has ended, and refuses the ranks that wait in it."""
        self._broken = self._broken or f"{how}; call it again on all ranks"
        ended = [key for key in self._rounds if key[0] < self._next]
        return [_refusal(each.caller, self._broken) for key in ended for each in self._rounds.pop(key).values()]


def _reply(caller: C, message: Any) -> Reply[C]:
    return Reply(caller, json.dumps(message))


def _refusal(caller: C, error: str) -> Reply[C]:
    return _reply(caller, {"error": error})

"""A rank's side of the rendezvous: give a card, get everybody's."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from hvdlite.errors import HorovodInternalError
from hvdlite.rendezvous.job import Job

MAX_ROSTER_BYTES = 64 << 20
ROUNDS_OF_INIT = 256  # more than any takes; the first is the one with which a rank begins
GRACE_S = 5.0  # how much longer than the server, which knows who is missing, a rank waits for its answer


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks of ``job`` meet: the ``address`` of the server, and what to look at when it gives no answer.

    ``reach`` is the IP address of rank 0 as this rank knows it, where the engine that started the ranks tells it.
    """

    job: Job
    address: str = ""
    silence: str = "is hvdrun still running?"
    reach: str = ""


def exchange(
    context: zmq.Context[Any], meeting: Meeting, *, number: int, rank: int, size: int, card: Any, deadline: float
) -> list[Any]:
    """Publishes this rank's ``card`` (JSON) in round ``number`` and returns the cards of all ranks in rank order.

    ``deadline`` is on the monotonic clock, in seconds. Raises HorovodInternalError that names the ranks that did not
    come in time, or says that nobody answers.
    """
    socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    try:
        socket.linger = 0
        socket.ipv6 = "[" in meeting.address
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_ROSTER_BYTES)
        meeting.job.dial(socket)
        socket.connect(meeting.address)
        timeout_s = max(0.0, deadline - time.monotonic())
        request = {"round": number, "rank": rank, "size": size, "timeout_s": timeout_s, "card": card}
        socket.send(json.dumps(request).encode())
        if not socket.poll(int((timeout_s + GRACE_S) * 1000)):
            raise HorovodInternalError(f"rank {rank} got no answer at {meeting.address}; {meeting.silence}")
        answer = json.loads(socket.recv())
    finally:
        socket.close()
    refuse(answer, rank, timeout_s, is_first=number % ROUNDS_OF_INIT == 0)
    cards: list[Any] = answer["cards"]
    return cards


def absent(ranks: Sequence[int], rank: int, waited_s: float, *, is_first: bool = True) -> HorovodInternalError:
    """What ``rank`` raises that has waited for ``ranks`` in vain, in the first round of ``init`` or in a later one."""
    names = ", ".join(map(str, ranks))
    return HorovodInternalError(
        f"rank {rank} waited {waited_s:.0f} s in init() but rank(s) {names} "
        f"{'did not call it' if is_first else 'have called it and did not go on'}. "
        "Look at their output, or raise HVDLITE_START_TIMEOUT."
    )


def refuse(answer: Mapping[str, Any], rank: int, waited_s: float, *, is_first: bool = True) -> None:
    """Raises HorovodInternalError if the ``answer`` to ``rank`` tells of missing ranks or of an error."""
    if "missing" in answer:
        raise absent(answer["missing"], rank, waited_s, is_first=is_first)
    if "error" in answer:
        raise HorovodInternalError(f"rank {rank} was refused where the ranks meet: {answer['error']}")

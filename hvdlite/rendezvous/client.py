"""A rank's side of the rendezvous: give a card, get everybody's."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvdlite.errors import HorovodInternalError
from hvdlite.net.calls import NobodyThere, Unanswered, ask
from hvdlite.rendezvous.job import Job

MAX_ROSTER_BYTES = 64 << 20
ROUNDS_OF_INIT = 256  # more than any takes; the first is the one with which a rank begins
GRACE_S = 5.0  # how much longer than the server, which knows who is missing, a rank waits for its answer


class MeetingOver(Exception):
    """All ranks came together already in the meeting that this rank came to, and in later ones up to ``last``."""

    def __init__(self, last: int) -> None:
        super().__init__(last)
        self.last = last


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks of ``job`` meet: the ``address`` of the server, and what to look at when it gives no answer.

    ``reach`` is the IP address of rank 0 as this rank knows it, where the engine that started the ranks tells it.
    """

    job: Job
    address: str = ""
    silence: str = "is hvdrun still running?"
    reach: str = ""


def exchange(meeting: Meeting, *, number: int, rank: int, size: int, card: Any, deadline: float) -> list[Any]:
    """Publishes this rank's ``card`` (JSON) in round ``number`` and returns the cards of all ranks in rank order.

    ``deadline`` is on the monotonic clock, in seconds. Raises HorovodInternalError that names the ranks that did not
    come in time, or says that nobody answers.
    """
    timeout_s = max(0.0, deadline - time.monotonic())
    request = {"round": number, "rank": rank, "size": size, "timeout_s": timeout_s, "card": card}
    try:
        answer = json.loads(
            ask(
                meeting.address,
                meeting.job.key("rendezvous"),
                json.dumps(request).encode(),
                start_by=deadline,
                answer_by=deadline + GRACE_S,
                limit=MAX_ROSTER_BYTES,
            )
        )
    except NobodyThere:
        raise HorovodInternalError(
            f"rank {rank} finds nobody at {meeting.address}, where the ranks of this job meet. Either who started it "
            "has ended, or this rank is in another network namespace (unshare -n, ip netns exec, a container of its "
            "own): start all ranks of a host in one network namespace, together with hvdrun if it starts them"
        ) from None
    except Unanswered as error:
        raise HorovodInternalError(
            f"rank {rank} got no answer at {meeting.address}: {error}; {meeting.silence}"
        ) from None
    if "over" in answer:
        raise MeetingOver(int(answer["over"]))
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

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
NEXT_EPOCH = -1  # what a rank that begins asks for, as it does not know the number
GRACE_S = 5.0  # how much longer than the server, which knows who is missing, a rank waits for its answer


class MeetingOver(Exception):
    """The only ``epoch`` that is served at this address has begun: its ranks came together already."""

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks of ``job`` meet: the ``address`` of the server, and what to look at when it gives no answer.

    ``reach`` is the IP address of rank 0 as this rank knows it, where the engine that started the ranks tells it.
    """

    job: Job
    address: str = ""
    silence: str = "is hvdrun still running?"
    reach: str = ""


class Exchanges:
    """One rank's exchanges with all ranks of the job from one ``init``. Each call is one round of them.

    In the first round all ranks come together, which begins an ``epoch``: its number is the server's, and the same on
    all ranks; a rank that is alone needs no server. ``deadline`` is for all rounds, on the monotonic clock in seconds.
    """

    def __init__(self, meeting: Meeting, rank: int, size: int, deadline: float) -> None:
        self.epoch = NEXT_EPOCH
        self._meeting = meeting
        self._rank = rank
        self._size = size
        self._deadline = deadline
        self._round = 0

    def __call__(self, card: Any) -> list[Any]:
        """Publishes this rank's ``card`` (JSON) and returns the cards of all ranks in rank order.

        Raises HorovodInternalError that names the ranks that did not come in time, or says that nobody answers.
        """
        if self._size == 1:
            self.epoch = 0
            return [card]
        timeout_s = max(0.0, self._deadline - time.monotonic())
        answer = self._asked(
            {
                "epoch": self.epoch,
                "round": self._round,
                "rank": self._rank,
                "size": self._size,
                "timeout_s": timeout_s,
                "card": card,
            }
        )
        if "over" in answer:
            raise MeetingOver(int(answer["over"]))
        refuse(answer, self._rank, timeout_s, is_first=self._round == 0)
        self.epoch = answer["epoch"]
        self._round += 1
        cards: list[Any] = answer["cards"]
        return cards

    def _asked(self, request: Any) -> dict[str, Any]:
        meeting, deadline = self._meeting, self._deadline
        try:
            answer: dict[str, Any] = json.loads(
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
                f"rank {self._rank} finds nobody at {meeting.address}, where the ranks of this job meet. Either who "
                "started it has ended, or this rank is in another network namespace (unshare -n, ip netns exec, a "
                "container of its own): start all ranks of a host in one network namespace, together with hvdrun if "
                "it starts them"
            ) from None
        except Unanswered as error:
            raise HorovodInternalError(
                f"rank {self._rank} got no answer at {meeting.address}: {error}; {meeting.silence}"
            ) from None
        return answer


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

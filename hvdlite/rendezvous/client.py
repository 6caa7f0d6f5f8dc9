"""A rank's side of the rendezvous: it sends an offer and receives the offers of all ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from hvdlite.errors import HorovodInternalError, HvdError
from hvdlite.members.ranges import named, shortened
from hvdlite.net.calls import NobodyThere, Pending, Unanswered, put
from hvdlite.net.untrusted import parse
from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.roster import LEAVING, NEXT_EPOCH, WATCHING
from hvdlite.scope import Cancelled, Scope

MAX_ROSTER_BYTES = 64 << 20
_PROMPT_S = 1.0  # for a message that the server sends or takes at once
GRACE_S = 5.0  # a rank waits this much longer than the server, which reports who is missing


class MeetingOver(Exception):
    """The only ``epoch`` that this address serves has already begun."""

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch


@dataclass(frozen=True, slots=True)
class Meeting:
    """The meeting point of ``job``: the ``address`` of the server, and a hint for messages when it is silent.

    ``reach`` is the IP address of rank 0 as this rank resolves it, if the engine gave one.
    """

    job: Job
    address: str = ""
    silence: str = "is hvdrun still running?"
    reach: str = ""


class Exchanges:
    """One rank's exchanges with all ranks of the job during one ``init``. Each call is one round.

    The first round begins an ``epoch``, which the server numbers; a job of one rank needs no server. ``scope`` limits
    all rounds together.

    As a context manager it leaves the epoch on any exception except HvdError and ValueError, which all ranks raise
    alike. The others learn which rank has left, and why, in their next round, or at once within `together`.
    """

    def __init__(self, meeting: Meeting, rank: int, size: int, scope: Scope) -> None:
        self.epoch = NEXT_EPOCH
        self._meeting = meeting
        self._rank = rank
        self._size = size
        self._scope = scope
        self._round = 0

    def __enter__(self) -> Exchanges:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        is_alike = error is None or isinstance(error, (HvdError, ValueError))
        if self._size > 1 and self.epoch != NEXT_EPOCH and not is_alike:
            self.leave(str(error) or type(error).__name__)

    def __call__(self, offer: Any) -> list[Any]:
        """Publishes this rank's ``offer`` (JSON) and returns the offers of all ranks in rank order.

        Raises HorovodInternalError if ranks are missing, which it names, or if the server does not answer.
        """
        if self._size == 1:
            self.epoch = 0
            return [offer]
        timeout_s = self._scope.left_s
        with self._put(self._round, offer, self._scope) as pending:
            answer = self._answer(pending, self._scope.later(GRACE_S))
        if "over" in answer:
            raise MeetingOver(int(answer["over"]))
        refuse(answer, self._rank, timeout_s, is_first=self._round == 0)
        self.epoch = answer["epoch"]
        self._round += 1
        offers: list[Any] = answer["offers"]
        return offers

    @contextmanager
    def together(self) -> Iterator[Scope]:
        """A context with a scope that is cancelled as soon as a rank leaves the epoch.

        Raises HorovodInternalError then, which names the rank that has left and the reason.
        """
        if self._size == 1:
            yield self._scope
            return
        refusals: list[str] = []
        with self._put(WATCHING, None, self._scope) as pending:
            is_over = False

            def why_left() -> str:
                nonlocal is_over
                if not is_over and pending.has_come():
                    is_over = True
                    with suppress(HorovodInternalError):  # the server has closed, because this epoch is connected
                        if "error" in (answer := self._answer(pending, Scope.of(_PROMPT_S))):
                            refusals.append(answer["error"])
                return "".join(refusals)

            try:
                # Rounds wait in the outer scope, because the server fails them itself. A round that it has answered
                # counts, however late the answer arrives, and even if a faster rank has begun another `init`.
                yield Scope(within=self._scope, watch=why_left)
            except Cancelled:
                if refusals:
                    raise refused(self._rank, refusals[0]) from None
                raise

    def leave(self, why: str) -> str:
        """Reports to the others that this rank leaves. Returns the reason that they get: the first rank's to leave."""
        if self._size == 1:
            return why
        prompt = Scope.of(_PROMPT_S)
        with suppress(HorovodInternalError), self._put(LEAVING, why, prompt) as pending:
            return str(self._answer(pending, prompt).get("error", why))
        return why

    def _put(self, number: int, offer: Any, scope: Scope) -> Pending:
        request = {
            "epoch": self.epoch,
            "round": number,
            "rank": self._rank,
            "size": self._size,
            "timeout_s": self._scope.left_s,
            "offer": offer,
        }
        try:
            return put(
                self._meeting.address,
                self._meeting.job.key("rendezvous"),
                json.dumps(request).encode(),
                most=MAX_ROSTER_BYTES,
                scope=scope,
                grace_s=GRACE_S,
            )
        except NobodyThere:
            raise HorovodInternalError(
                f"rank {self._rank} found no listener at {self._meeting.address}, where the ranks of this job meet. "
                "Either its process has ended, or this rank is in another network namespace (unshare -n, ip netns "
                "exec, a container of its own): start all ranks of a host in one network namespace, together with "
                "hvdrun if it starts them"
            ) from None
        except Unanswered as error:
            raise self._unanswered(error) from None

    def _answer(self, pending: Pending, scope: Scope) -> dict[str, Any]:
        try:
            answer = parse(pending.answer(scope))
        except Unanswered as error:
            raise self._unanswered(error) from None
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._unanswered(Unanswered("what came is no answer"))
        return answer

    def _unanswered(self, error: Unanswered) -> HorovodInternalError:
        meeting = self._meeting
        return HorovodInternalError(f"rank {self._rank} got no answer at {meeting.address}: {error}; {meeting.silence}")


def absent(ranks: Sequence[int], rank: int, waited_s: float, *, is_first: bool = True) -> HorovodInternalError:
    """The error of ``rank`` if ``ranks`` did not come, in the first round of ``init`` or a later one."""
    error = HorovodInternalError(
        f"rank {rank} waited {waited_s:.0f} s in init() but rank(s) {shortened(ranks)} "
        f"{'did not call it' if is_first else 'called it but did not continue'}. "
        "Look at their output, or raise HVDLITE_START_TIMEOUT."
    )
    if ranks:
        first, *others = ranks
        did = "did not call init()" if is_first else "called init() but did not continue"
        error.blamed = first, f"{did} within {waited_s:.0f} s{f', nor did {named(others)}' if others else ''}"
    return error


def refused(rank: int, error: str) -> HorovodInternalError:
    """The error of ``rank`` for an ``error`` that the server sent."""
    return HorovodInternalError(f"rank {rank} was refused where the ranks meet: {error}")


def refuse(answer: Mapping[str, Any], rank: int, waited_s: float, *, is_first: bool = True) -> None:
    """Raises HorovodInternalError if the ``answer`` to ``rank`` reports missing ranks or an error."""
    if "missing" in answer:
        raise absent(answer["missing"], rank, waited_s, is_first=is_first)
    if "error" in answer:
        raise refused(rank, answer["error"])

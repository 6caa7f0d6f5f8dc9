"""Decides which batches the ranks of a group run, and in which order.

Each rank has a *decider*, and the deciders of all ranks return the same runs in the same order. A turn passes the
messages of other ranks and the tensors that this rank submitted to its decider, and then takes the decisions.

The root decides for all ranks: a `RootDecider` has the negotiator, and a `RemoteDecider` on every other rank exchanges
messages with it. A protocol without a root would be another `Decider`.

The root decides as soon as its executor has room for a batch, so tensors accumulate and fuse while bytes are moving.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

from hvdlite.blackbox.format import Finding
from hvdlite.control.link import ControlLink
from hvdlite.engine.observer import Observer
from hvdlite.members.membership import Membership
from hvdlite.negotiation.delays.arrival import UNKNOWN
from hvdlite.negotiation.delays.stall import StallWatch
from hvdlite.negotiation.delays.straggler import StragglerWatch
from hvdlite.negotiation.messages import ORDERLY, End, EndKind, Ready, Run, Tuning
from hvdlite.negotiation.negotiate import Negotiator
from hvdlite.negotiation.wire import MAX_BYTES, Message, ProtocolError
from hvdlite.settings import Settings

Decision: TypeAlias = Run | End


class Decider(ABC):
    """One rank's part in the decisions of its group. It has no thread and no clock.

    Calls must not overlap; ``now`` is a time of the monotonic clock. Any thread may call `tune` at any time, and read
    ``has_agreed`` and ``due``: the time at which `decisions` must be called even if no message arrives, or None.
    """

    due: float | None = None

    @property
    def has_agreed(self) -> bool:
        """True if `decisions` would return a run when called with ``has_room``."""
        return False

    @abstractmethod
    def receive(self, sender: int, message: Message, now: float) -> None:
        """Takes a message of group index ``sender``. Raises ProtocolError for a message that no correct rank sends."""

    @abstractmethod
    def submit(self, ready: Ready, now: float) -> None:
        """Publishes the tensors that this rank has submitted."""

    @abstractmethod
    def decisions(self, has_room: bool, now: float) -> Sequence[Decision]:
        """Returns the decisions since the last call, in the order that is the same on all ranks.

        Without ``has_room`` for another batch, the root decides on no run.
        """

    @abstractmethod
    def end(self, end: End) -> None:
        """Ends the group on all ranks. An `ORDERLY` end is decided like a run; any other end counts at once.

        May be called again: the first end counts, and later ones report which ranks have left.
        """

    @abstractmethod
    def tune(self, tuning: Tuning) -> None:
        """Applies ``tuning`` on all ranks from the next run on. Raises ValueError on any rank but the root."""


def decider_of(membership: Membership, options: Settings, link: ControlLink, observer: Observer) -> Decider:
    """Returns the decider of this rank."""
    if membership.rank == 0:
        return RootDecider(membership, options, link, observer)
    return RemoteDecider(membership, link)


class RootDecider(Decider):
    """Decides for all ranks of the group, and watches for stalls and for ranks that are late."""

    def __init__(self, membership: Membership, options: Settings, link: ControlLink, observer: Observer) -> None:
        self._ranks = ranks = membership.ranks
        self._hosts = hosts = [host.name for host in membership.hosts]
        self._link = link
        self._observer = observer
        tuning = Tuning(min(options.fusion_threshold, MAX_BYTES), options.cycle_time / 1000)
        self._negotiator = Negotiator(ranks, options.cache_capacity, tuning)
        self._held_until: float | None = None
        warn_s = 0.0 if options.stall_check_disable else options.stall_check_time_seconds
        self._stall = StallWatch(warn_s, options.stall_shutdown_time_seconds)
        self._next_stall_check: float | None = None
        self._stragglers = StragglerWatch(ranks, hosts)
        self._has_ended = False
        self._ends: list[End] = []

    @property
    def has_agreed(self) -> bool:
        return not self._has_ended and self._negotiator.has_agreed

    def receive(self, sender: int, message: Message, now: float) -> None:
        if isinstance(message, Ready):
            if not self._has_ended:
                was_last = self._negotiator.receive(sender, message)
                self._observer.arrived(sender, was_last, now)
        elif isinstance(message, End):
            self.end(message)
        else:
            raise _unexpected(self._ranks[sender])

    def submit(self, ready: Ready, now: float) -> None:
        if not self._has_ended:
            was_last = self._negotiator.receive(0, ready)
            self._observer.arrived(0, was_last, now)

    def decisions(self, has_room: bool, now: float) -> Sequence[Decision]:
        decided: Sequence[Decision] = ()
        if not self._has_ended:
            negotiator = self._negotiator
            if has_room and negotiator.has_agreed and not (negotiator.tuning.hold_s and self._holds_back(now)):
                self._held_until = None
                decided = (self._cut(now),)
            if self._stall.interval_s is not None:
                if negotiator.is_waiting:
                    self._check_stalls(now)
                else:
                    self._next_stall_check = None
            due = self._held_until if has_room else None  # without room: the executor wakes the coordinator later
            if due is None or (self._next_stall_check is not None and self._next_stall_check < due):
                due = self._next_stall_check
            self.due = due
        if self._has_ended:
            decided = [*decided, *self._ends]
            self._ends.clear()
            self.due = None
        return decided

    def end(self, end: End) -> None:
        self._has_ended = True
        self._ends.append(end)
        self._link.send(end)  # before the waits on this rank end, after which the program may exit

    def tune(self, tuning: Tuning) -> None:
        self._negotiator.tuning = tuning

    def _holds_back(self, now: float) -> bool:
        if self._held_until is None:
            self._held_until = now + self._negotiator.tuning.hold_s
        return now < self._held_until

    def _cut(self, now: float) -> Run:
        negotiator, observer = self._negotiator, self._observer
        run = negotiator.cut()
        self._link.send(run)
        named = self._stragglers.ran(run.generation, negotiator.bits_cut, observer.arrival, now)
        if named is not None:
            observer.found(Finding("straggler", *named))
        return run

    def _check_stalls(self, now: float) -> None:
        interval_s = self._stall.interval_s
        assert interval_s is not None
        if self._next_stall_check is None:  # most waits are short, so the first check comes after an interval
            self._next_stall_check = now + interval_s
        if now < self._next_stall_check:
            return
        self._next_stall_check = now + interval_s
        waiting = self._negotiator.waiting()
        missing = {rank for wait in waiting.values() for rank in wait.missing}
        self._observer.missing = self._ranks.index(missing.pop()) if len(missing) == 1 else UNKNOWN
        report = self._stall.check(waiting, now)
        if report.warning:
            self._observer.found(Finding("stall", report.warning, report.facts))
        if report.fatal:
            late = report.fatal[0][0]
            host = self._hosts[self._ranks.index(late)]
            self.end(End(EndKind.STALLED, late, host, "", report.waited_s, report.fatal))


class RemoteDecider(Decider):
    """Sends the tensors that this rank submitted to the root, and receives the root's decisions."""

    def __init__(self, membership: Membership, link: ControlLink) -> None:
        self._ranks = membership.ranks
        self._link = link
        self._decided: list[Decision] = []

    def receive(self, sender: int, message: Message, now: float) -> None:
        if not isinstance(message, (Run, End)):
            raise _unexpected(self._ranks[sender])
        self._decided.append(message)

    def submit(self, ready: Ready, now: float) -> None:
        self._link.send(ready)

    def decisions(self, has_room: bool, now: float) -> Sequence[Decision]:
        if not (decided := self._decided):
            return ()
        self._decided = []
        return decided

    def end(self, end: End) -> None:
        if end.kind not in ORDERLY:
            self._decided.append(end)
        self._link.send(end)  # an orderly end counts when the root sends it back, after the runs that come before it

    def tune(self, tuning: Tuning) -> None:
        raise ValueError(f"only rank {self._ranks[0]} tunes this group")


def _unexpected(rank: int) -> ProtocolError:
    return ProtocolError(f"rank {rank} sent a message that it must not send")

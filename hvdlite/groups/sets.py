"""The process sets of one session: registers them on all ranks alike, and propagates their ends.

Registering and removing are collectives over all ranks of the job. Ranks first exchange what each wants; if they want
different things, all raise an error and nothing happens. Then the members connect their own group, exchanging addresses
through the global group, to which other ranks contribute empty ones. At last all exchange the outcome, so that a set is
registered everywhere or nowhere.

A rank that is lost, stalls or fails ends the whole job, whichever group notices: the end of a set ends the global group
on all ranks, and the end of the global group ends all sets. Only the removal of a set ends just that set.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hvdlite.engine.apart import do_apart
from hvdlite.errors import HorovodInternalError, HvdError, Mismatch
from hvdlite.groups.connecting import NotConnected, look_on
from hvdlite.groups.group import Group
from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.negotiation.end_messages import error_of
from hvdlite.negotiation.messages import ORDERLY, End, EndKind
from hvdlite.scope import Scope
from hvdlite.settings import Settings

Watcher = Callable[[int, Group], None]


class Registry:
    """The registered process sets. The same calls in the same order on all ranks assign the same numbers.

    ``everyone`` is the group of all ranks, and ``groups`` has those that this rank is in, by the number of their set.
    """

    def __init__(self, everyone: Group, options: Settings) -> None:
        self.everyone = everyone
        self.groups: dict[int | None, Group] = {0: everyone}  # replaced, never modified: it is read without a lock
        self._watchers: list[Watcher] = []
        self._options = options
        self._rank = everyone.rank
        self._openings = itertools.count(1)
        self._sets: dict[int, ProcessSet] = {}
        self._lock = threading.RLock()  # one registration at a time
        everyone.when_ended(self._end_all)
        global_process_set.register(0, everyone.ranks, self._rank)

    def watch(self, watcher: Watcher) -> None:
        """Calls ``watcher`` with the number and the group of each set that this rank is in, or is added to later."""
        self._watchers.append(watcher)
        for number, group in self.groups.items():
            watcher(number or 0, group)

    def group_of(self, process_set: ProcessSet) -> Group:
        """The group that runs a set's collectives. Raises ValueError if it is not registered or lacks this rank."""
        try:
            group = self.groups.get(process_set.process_set_id)
        except AttributeError:
            raise ValueError(f"process_set must be a ProcessSet, not {process_set!r:.60}") from None
        if group is None:
            self.refuse_unknown(process_set)
            raise ValueError(f"rank {self._rank} is not in process set {process_set.ranks}; only members may use it")
        return group

    def refuse_unknown(self, process_set: ProcessSet) -> None:
        """Raises ValueError if a set is not registered."""
        if process_set.process_set_id not in self._sets:
            raise ValueError(f"{process_set} is not registered; pass it to add_process_set() or init() first")

    def ranks_by_number(self) -> dict[int, list[int]]:
        """The ranks of every set, including the global one, by its number."""
        return {0: list(self.everyone.ranks)} | {number: list(each.ranks or ()) for number, each in self._sets.items()}

    def of(self, ranks: Sequence[int]) -> ProcessSet:
        """The registered set of ``ranks``; one that is not registered if there is none."""
        found = (each for each in list(self._sets.values()) if each.ranks == list(ranks))
        return next(found, None) or ProcessSet(ranks)

    def knows(self, process_set: ProcessSet) -> bool:
        """True if this very object is registered."""
        return process_set in self._sets.values()

    def add(self, process_sets: Sequence[ProcessSet]) -> None:
        """Registers all of ``process_sets``, on all ranks of the job together.

        Raises ValueError for ranks that are not in the job or that another set has, Mismatch if ranks do not give the
        same sets, and HorovodInternalError if a member could not connect, or was interrupted: the same on all ranks.
        A rank that ends or is stopped meanwhile is lost, as in any collective.
        """
        if (refused := self.refuses(process_sets)) is not None:
            raise refused

    def refuses(self, process_sets: Sequence[ProcessSet]) -> HvdError | ValueError | None:
        """Like `add`, but returns what `add` raises. Whatever this raises comes from a signal handler."""

        def add(scope: Scope) -> HvdError | ValueError | None:
            try:
                self._add(process_sets, scope)
            except (HvdError, ValueError) as error:
                return error
            return None

        with self.everyone.watching_peers():
            return do_apart(add, "adding a process set")

    def _add(self, process_sets: Sequence[ProcessSet], scope: Scope) -> None:
        size = self.everyone.size
        with self._lock, self._ending_if_it_fails("adding a process set"):
            self._agree("adds " + ", ".join(str(process_set.ranks) for process_set in process_sets))
            for process_set in process_sets:
                if not process_set.ranks or process_set.ranks[-1] >= size:
                    raise ValueError(
                        f"process set {process_set.ranks} is not of this job, whose ranks are 0 to {size - 1}"
                    )
            self._refuse_duplicates(process_sets)
            for process_set in process_sets:
                self._open(process_set, scope)

    def remove(self, process_set: ProcessSet) -> bool:
        """Unregisters a set, on all ranks together. False for the global set and for one that is not registered.

        Raises ValueError for anything but a process set, and Mismatch if ranks do not pass the same one. Continues in
        the background if the caller is interrupted.
        """
        if not isinstance(process_set, ProcessSet):
            raise ValueError(f"process_set must be a ProcessSet, not {process_set!r:.60}")
        return do_apart(lambda _: self._remove(process_set), "removing a process set")

    def _remove(self, process_set: ProcessSet) -> bool:
        with self._lock, self._ending_if_it_fails("removing a process set"):
            number = process_set.process_set_id
            if number not in self._sets:
                return False
            self._agree(f"removes number {number}, {process_set.ranks}")
            self._sets.pop(number).unregister()
            group = self.groups.get(number)
            if group is not None:
                self.groups = {key: other for key, other in self.groups.items() if other is not group}
                group.end(EndKind.REMOVED, Scope.of(self._options.shutdown_timeout))
            return True

    def forget(self) -> None:
        """Marks all process sets but the global one as unregistered on this rank; their groups stay as they are."""
        for process_set in self._sets.values():
            process_set.unregister()
        self._sets = {}

    def _agree(self, wish: str) -> None:
        wishes: dict[str, list[int]] = {}
        for rank, other in enumerate(self._exchange(wish)):
            wishes.setdefault(str(other), []).append(rank)
        if len(wishes) > 1:
            told = "; ".join(f"rank(s) {', '.join(map(str, ranks))}: {other}" for other, ranks in wishes.items())
            raise Mismatch(f"ranks disagree about process sets: {told}. Make the same calls on every rank.")

    def _refuse_duplicates(self, process_sets: Sequence[ProcessSet]) -> None:
        known = {tuple(other.ranks or ()): f"number {number}" for number, other in self._sets.items()}
        known[self.everyone.ranks] = "the global one"
        for process_set in process_sets:
            ranks = tuple(process_set.ranks or ())
            if ranks in known:
                raise ValueError(f"there is a process set of ranks {list(ranks)} already, {known[ranks]}; use that one")
            known[ranks] = "earlier in the same list"

    def _open(self, process_set: ProcessSet, scope: Scope) -> None:
        members = tuple(process_set.ranks or ())
        number = next(number for number in itertools.count(1) if number not in self._sets)
        name = f"set {next(self._openings)}"  # that of no other group of this job
        if (group := self._join(members, name, scope)) is not None:
            group.when_ended(self._end_everyone)
            self.groups = {**self.groups, number: group}
            for watcher in self._watchers:
                watcher(number, group)
            if (end := self.everyone.ended) is not None:  # perhaps before `_end_all` knew this group
                group.end(end)
        self._sets[number] = process_set
        process_set.register(number, members, self._rank)

    def _join(self, members: Sequence[int], name: str, scope: Scope) -> Group | None:
        """Opens the group of ``members``; None on ranks that are not among them, which look on.

        Raises HorovodInternalError on all ranks if one cannot connect, or if the call of one was interrupted before it
        told the others how it went, and PeerLost as any collective does.
        """

        def exchange(offer: Any) -> list[Any]:
            if scope.cancelled and self._rank in members:
                offer = {"failure": scope.cancelled}
            offers = self._exchange(offer)
            return [offers[member] for member in members]

        try:
            if self._rank not in members:
                look_on(members, exchange)
                return None
            membership, memory = self.everyone.membership.among(members, name), self.everyone.memory
            # Not in the scope of the call: the others, who wait for this rank to connect, would not hear of its end.
            connecting = Scope(within=Scope.of(self._options.start_timeout), watch=self._failure)
            return Group.open(membership, self._options, exchange, connecting, memory and memory.of(members))
        except NotConnected as error:
            raise HorovodInternalError(f"process set {list(members)} was not added: {error}") from error

    def _failure(self) -> str:
        """Why the job has failed, if it has; a member that is connecting does not hear of it otherwise."""
        end = self.everyone.ended
        return "" if end is None or end.kind in ORDERLY else str(error_of(end))

    def _exchange(self, offer: str | None) -> list[Any]:
        return self.everyone.exchange("hvdlite.process_set", offer)

    def _end_all(self, end: End) -> None:
        """Ends the groups of all sets for the reason that ended the global one."""
        for number, group in self.groups.items():
            if number != 0:
                group.end(end)

    def _end_everyone(self, end: End) -> None:
        """Ends the global group for the reason that ended that of a set."""
        if end.kind not in ORDERLY:
            self.everyone.end(end)

    @contextmanager
    def _ending_if_it_fails(self, what: str) -> Iterator[None]:
        """Ends the job if this rank fails in the middle of what others continue."""
        try:
            yield
        except (HvdError, ValueError):  # all ranks raise it
            raise
        except BaseException as error:
            cause = f"{what} failed: {type(error).__name__}: {error}"
            host = self.everyone.membership.hosts[self._rank].name
            self.everyone.end(End(EndKind.FAILED, self._rank, host, cause))
            raise

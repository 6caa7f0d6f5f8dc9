"""The process sets of one session: registers them on all ranks, and propagates the ends of their groups.

Adding and removing a set are collectives over all ranks of the job. Ranks first exchange their requests; if these
differ, all ranks raise an error and nothing happens. Then the members connect their own group. They exchange addresses
and the outcome through the global group, so the other ranks take part in these exchanges, and a set is registered on
all ranks or on none.

A rank that is lost, stalls or fails ends the whole job, whichever group notices: the end of a set's group ends the
global group, and the end of the global group ends the groups of all sets. Only a removal ends just one set.
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
    """The registered process sets. Ranks that make the same calls in the same order assign the same numbers.

    ``everyone`` is the global group, and ``groups`` has all groups of this rank, by the number of their set.
    """

    def __init__(self, everyone: Group, options: Settings) -> None:
        self.everyone = everyone
        self.groups: dict[int | None, Group] = {0: everyone}  # replaced, never modified: other threads read it unlocked
        self._watchers: list[Watcher] = []
        self._options = options
        self._rank = everyone.rank
        self._openings = itertools.count(1)
        self._sets: dict[int, ProcessSet] = {}
        self._lock = threading.RLock()  # one registration at a time
        everyone.when_ended(self._end_all)
        global_process_set.register(0, everyone.ranks, self._rank)

    def watch(self, watcher: Watcher) -> None:
        """Calls ``watcher`` with the number and the group of each set of this rank, of present and of later sets."""
        self._watchers.append(watcher)
        for number, group in self.groups.items():
            watcher(number or 0, group)

    def group_of(self, process_set: ProcessSet) -> Group:
        """Returns the group of ``process_set``. Raises ValueError if the set is not registered or lacks this rank."""
        try:
            group = self.groups.get(process_set.process_set_id)
        except AttributeError:
            raise ValueError(f"process_set must be a ProcessSet, not {process_set!r:.60}") from None
        if group is None:
            self.refuse_unknown(process_set)
            raise ValueError(f"rank {self._rank} is not in process set {process_set.ranks}; only members may use it")
        return group

    def refuse_unknown(self, process_set: ProcessSet) -> None:
        """Raises ValueError if ``process_set`` is not registered."""
        if process_set.process_set_id not in self._sets:
            raise ValueError(f"{process_set} is not registered; pass it to add_process_set() or init() first")

    def ranks_by_number(self) -> dict[int, list[int]]:
        """Returns the ranks of every set, including the global one, by the number of the set."""
        return {0: list(self.everyone.ranks)} | {number: list(each.ranks or ()) for number, each in self._sets.items()}

    def of(self, ranks: Sequence[int]) -> ProcessSet:
        """Returns the registered set of ``ranks``, or a new `ProcessSet` if none is registered."""
        found = (each for each in list(self._sets.values()) if each.ranks == list(ranks))
        return next(found, None) or ProcessSet(ranks)

    def knows(self, process_set: ProcessSet) -> bool:
        """True if this very object is registered."""
        return process_set in self._sets.values()

    def add(self, process_sets: Sequence[ProcessSet]) -> None:
        """Registers all of ``process_sets``. All ranks of the job call it together.

        Raises, on all ranks, ValueError for ranks that are not in the job or are already the ranks of another set,
        Mismatch if ranks pass different sets, and HorovodInternalError if a member cannot connect or is interrupted.
        A rank that ends or stops meanwhile is lost, as in any collective.
        """
        if (refused := self.refuses(process_sets)) is not None:
            raise refused

    def refuses(self, process_sets: Sequence[ProcessSet]) -> HvdError | ValueError | None:
        """Like `add`, but returns the error that `add` raises. An exception comes from a signal handler."""

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
                        f"process set {process_set.ranks} is not within this job, whose ranks are 0 to {size - 1}"
                    )
            self._refuse_duplicates(process_sets)
            for process_set in process_sets:
                self._open(process_set, scope)

    def remove(self, process_set: ProcessSet) -> bool:
        """Unregisters ``process_set``. All ranks call it together. False for the global set and an unregistered one.

        Raises ValueError for anything but a process set, and Mismatch if ranks pass different sets. If a signal handler
        raises meanwhile, the removal continues in the background.
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
        """Marks all process sets but the global one as unregistered on this rank. Does not touch their groups."""
        for process_set in self._sets.values():
            process_set.unregister()
        self._sets = {}

    def _agree(self, request: str) -> None:
        ranks_by_request: dict[str, list[int]] = {}
        for rank, other in enumerate(self._exchange(request)):
            ranks_by_request.setdefault(str(other), []).append(rank)
        if len(ranks_by_request) > 1:
            sides = "; ".join(
                f"rank(s) {', '.join(map(str, ranks))}: {other}" for other, ranks in ranks_by_request.items()
            )
            raise Mismatch(f"ranks disagree about process sets: {sides}. Make the same calls on every rank.")

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
        name = f"set {next(self._openings)}"  # unique in the job, unlike the number
        if (group := self._join(members, name, scope)) is not None:
            group.when_ended(self._end_everyone)
            self.groups = {**self.groups, number: group}
            for watcher in self._watchers:
                watcher(number, group)
            if (end := self.everyone.ended) is not None:  # perhaps before `groups` had this group for `_end_all`
                group.end(end)
        self._sets[number] = process_set
        process_set.register(number, members, self._rank)

    def _join(self, members: Sequence[int], name: str, scope: Scope) -> Group | None:
        """Opens the group of ``members``. Ranks outside take part in the exchanges, and get None.

        Raises HorovodInternalError on all ranks if a member cannot connect, or is interrupted before it publishes its
        outcome, and PeerLost as any collective does.
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
            # Not in the scope of the call: members that connect to this rank could not see that it is cancelled.
            connecting = Scope(within=Scope.of(self._options.start_timeout), watch=self._failure)
            return Group.open(membership, self._options, exchange, connecting, memory and memory.of(members))
        except NotConnected as error:
            raise HorovodInternalError(f"process set {list(members)} was not added: {error}") from error

    def _failure(self) -> str:
        """Returns why the job has failed, or an empty string. A member that is connecting learns it in no other way."""
        end = self.everyone.ended
        return "" if end is None or end.kind in ORDERLY else str(error_of(end))

    def _exchange(self, offer: str | None) -> list[Any]:
        return self.everyone.exchange("hvdlite.process_set", offer)

    def _end_all(self, end: End) -> None:
        """Ends the groups of all sets, for the same reason as the global group."""
        for number, group in self.groups.items():
            if number != 0:
                group.end(end)

    def _end_everyone(self, end: End) -> None:
        """Ends the global group, for the same reason as the group of a set."""
        if end.kind not in ORDERLY:
            self.everyone.end(end)

    @contextmanager
    def _ending_if_it_fails(self, what: str) -> Iterator[None]:
        """Ends the job if this rank fails in the middle of a call that the other ranks continue."""
        try:
            yield
        except (HvdError, ValueError):  # all ranks raise it
            raise
        except BaseException as error:
            cause = f"{what} failed: {type(error).__name__}: {error}"
            host = self.everyone.membership.hosts[self._rank].name
            self.everyone.end(End(EndKind.FAILED, self._rank, host, cause))
            raise

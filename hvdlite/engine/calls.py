"""Blocking calls that take the short way: one native call of the caller's thread agrees on its tensors and runs them.

A rank with nothing in flight can only wait for the tensor of this call, or for the tensors of its grouped form. So no
turn and no batch need to be made. The rank puts the bytes into the page before it submits them; if all ranks do, each
finds all the bytes there.

The native call takes a few milliseconds at most, because signal handlers do not run meanwhile, and is then resumed. If
the tensors have not run after a tenth of a second, or if another rank did not put its bytes into the page, the call is
*left*: turns go on with its entries.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import is_
from time import monotonic
from typing import Any, Final, NamedTuple

from hvdlite import native
from hvdlite.control.page import ALIGNMENT, News, Page
from hvdlite.engine.batch import Recipe, first_resized, recipe_of
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.negotiation.cache import Known
from hvdlite.negotiation.delays.arrival import Arrival
from hvdlite.negotiation.delays.straggler import Unreported
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import Kind
from hvdlite.negotiation.replica import Replica
from hvdlite.negotiation.unnamed import Epoch, Unnamed, is_signed
from hvdlite.tensors.device import CPU

_MOST_RESUMED: Final = 12  # so for a tenth of a second; then this rank watches its peers, and stalls are reported
_QUIET_S: Final = 0.001  # a shorter pause before a call, or a shorter wait for the last rank, does not matter
_MOST_INTERRUPTS: Final = 100
_REPORT_S: Final = 0.1  # calls are reported to the decider at least as often


_pack_addresses: Final = struct.Struct("=QQ").pack_into  # ``source`` and ``target`` of a `native.Carried`


class _Prepared(NamedTuple):
    """What calls of some tensors need, as long as they are known as ``known`` and, but for the first, ``others``.

    ``tensors`` is None if they take the usual way. Ranks have the tensors in the order of their bits, so ``places`` has
    where each one's begins. If it ``is_long``, the one tensor takes the usual way unless this rank shares it.
    """

    known: Known
    names: Sequence[str]  # of the others
    others: Sequence[Known | None]
    recipes: Sequence[Recipe] = ()
    tensors: ctypes.Array[native.Carried] | None = None
    tensors_at: int = 0
    places: Sequence[int] = ()
    bits: int = 0  # without those of which a step has any number
    is_long: bool = False

    def fits(self, entries: Sequence[Entry[Any]], known: Mapping[str, Known]) -> bool:
        """True if all ``entries`` but the first are the others, and known as these."""
        if len(entries) != 1 + len(self.others) or not all(map(is_, map(known.get, self.names), self.others)):
            return False
        requests = [None if other is None else other.request for other in self.others]
        return all(map(is_, requests, [entry.request for entry in entries[1:]]))


class Calls:
    """The short way of one group on this rank, which has ``page``.

    ``called`` is `PageDecider.called`, or None on a rank alone. ``wake`` wakes the coordinator.
    """

    def __init__(
        self,
        page: Page,
        in_flight: InFlight,
        replica: Replica,
        observer: Observer,
        called: Callable[[int, Arrival, float, Unreported], None] | None,
        wake: Callable[[], None],
    ) -> None:
        self._page = page
        self._in_flight = in_flight
        self._replica = replica
        self._known = replica.cache.known
        self._observer = observer
        self._called = called
        self._wake = wake
        self._prepared: dict[str, _Prepared] = {}
        self._current: dict[None, Sequence[Entry[Any]]] = {}  # of the call, whose thread alone may make one
        self._has_begun = False  # its outcome counts
        self._epoch: Epoch | None = None  # in which its number counts
        # For the decider of the root. Since the latest report: the bits of the current step, and the steps before.
        self._reports: deque[tuple[int, Arrival, float, Unreported]] = deque()
        self._ran = self._steps = 0
        self._done_at = self._reported_at = 0.0
        if called is None:  # turns do not use the page
            page.next(True)

    def run(self, entries: Sequence[Entry[Any]]) -> bool:
        """Runs ``entries``. False if they must be submitted in the usual way; else they are in flight, or done."""
        page, in_flight = self._page, self._in_flight
        version = page.version  # first: if something changes from here on, the native call is refused
        if not entries:
            return False
        first, count = entries[0], len(entries)
        request = first.request
        known = self._known.get(request.name)
        if known is None or known.request is not request:  # that of a chained call is another object
            return False
        prepared = self._prepared.get(request.name)
        if (
            prepared is None
            or prepared.known is not known
            or ((count > 1 or prepared.others) and not prepared.fits(entries, self._known))
        ):
            prepared = self._prepare(entries, known)
        tensors = prepared.tensors
        if tensors is None or first_resized(entries) is not None:
            return False
        if prepared.is_long and not page.shares(first.source, first.target, first.nbytes):
            return False
        batches = self._replica.batches
        # Keeps the memory, even if the end of the group finishes the entries.
        owners = first.owner if count == 1 else [entry.owner for entry in entries]
        if first.allocate is not None:
            if in_flight:
                return False
            for entry, recipe in zip(entries, prepared.recipes, strict=True):
                assert entry.allocate is not None
                entry.output, entry.target = entry.allocate(recipe.shape, recipe.rows)
        try:
            if self._current.setdefault(None, entries) is not entries:
                return False
            if in_flight.enter_alone(entries):  # so no join is in flight, and a later one would close the page
                self._epoch = first.name.epoch if type(first.name) is Unnamed else None
                for entry, place in zip(entries, prepared.places):  # noqa: B905, of equal length
                    _pack_addresses(tensors, place, entry.source, entry.target)
                page.prepare(version, prepared.tensors_at, count)
                self._has_begun = True
                # What it returns, because a turn may take over a call that was left, and another call may begin.
                outcome = page.run()
                since, resumed = 0.0, 0
                while outcome > native.CALL_LEFT and resumed < _MOST_RESUMED:
                    since = since or monotonic()
                    resumed += 1
                    outcome = page.resume(outcome)
                if outcome == native.CALL_DONE:
                    self._finish(entries, prepared, batches)
                    return True
                if outcome != native.CALL_REFUSED:
                    if outcome != native.CALL_LEFT:
                        self._wake()
                    if since:
                        self._observer.waited(monotonic() - since)
                    return True
                in_flight.withdraw(entries)
            self._release(entries)
        except BaseException:
            for _ in range(_MOST_INTERRUPTS):
                with suppress(BaseException):  # of another signal handler, which must not leave the call half ended
                    self._after_interrupt(entries, prepared, batches)
                    break
            raise
        finally:
            del owners
        return False

    def settle(self) -> bool:
        """Lets a turn go on with a call that was left, once it has taken new entries, which came after it.

        True if there was one without a name.
        """
        if self._reports:
            self._report()
        if self._current and self._page.adopt():
            entries = self._current[None]  # read now: the call that was left stays there, and an earlier one may not
            first = entries[0].request  # before it has a number
            for entry in entries:
                entry.was_taken_up = True
                if not entry.is_done:  # else the group has ended
                    self._replica.adopt(self._known[entry.request.name].bit, entry)
            self._release(entries)
            return is_signed(first)
        return False

    def count(self) -> None:
        """Counts the calls before the latest decision, for the numbers of batches."""
        self._replica.calls = self._page.call.number if self._called is None else self._page.calls

    def _prepare(self, entries: Sequence[Entry[Any]], known: Known) -> _Prepared:
        page, requests = self._page, [entry.request for entry in entries]
        names = [request.name for request in requests]
        knowns = [known, *map(self._known.get, names[1:])]
        prepared = _Prepared(known, names[1:], knowns[1:])
        if not all(
            each is not None and each.request is request for each, request in zip(knowns, requests, strict=True)
        ):
            return prepared  # they are about to be known, or otherwise
        found: list[tuple[int, Recipe]] = []
        is_whole = len(requests) == 1 or requests[0].group_length == len(requests)  # so it is on all ranks
        for request, each in zip(requests, knowns, strict=True):
            assert each is not None
            definition = self._replica.cache.definitions.get(each.bit)
            if is_whole and definition is not None and request.device.kind == CPU.kind and each.bit < page.names:
                recipe = recipe_of(request, definition.rows, page.size, page.rank)
                if recipe is not None:
                    found.append((each.bit, recipe))
        taken = sum(-(-recipe.native.bytes // ALIGNMENT) * ALIGNMENT for _, recipe in found)
        most = page.most_bytes if len(requests) > 1 else page.most_bytes_alone
        is_long = len(found) == 1 and most < taken <= page.most_bytes_shared and found[0][1].native.is_everything
        if len(found) == len(requests) and (taken <= most or is_long):
            prepared = self._place(prepared, found)._replace(is_long=bool(is_long))
            if len(found) == 1 and found[0][1].native.is_everything:
                page.stage(found[0][1].nbytes)
        if len(self._prepared) >= 2 * page.names:  # of names that the cache has forgotten
            self._prepared.clear()
        self._prepared[names[0]] = prepared
        return prepared

    @staticmethod
    def _place(prepared: _Prepared, found: list[tuple[int, Recipe]]) -> _Prepared:
        """Completes ``prepared`` with the bit and the recipe of each request."""
        tensors = (native.Carried * len(found))()
        places = [0] * len(found)
        for place, number in enumerate(sorted(range(len(found)), key=lambda number: found[number][0])):
            bit, recipe = found[number]
            tensor = tensors[place]
            tensor.name, tensor.bytes, tensor.recipe = bit, recipe.nbytes, ctypes.pointer(recipe.native)
            places[number] = place * ctypes.sizeof(native.Carried)
        first = prepared.known.request
        is_often = first.kind is Kind.BARRIER or is_signed(first)
        return prepared._replace(
            recipes=[recipe for _, recipe in found],
            tensors=tensors,
            tensors_at=ctypes.addressof(tensors),
            places=places,
            bits=0 if is_often else sum(1 << bit for bit, _ in found),
        )

    def number(self) -> None:
        """Numbers the call that this thread has just made, if a signal handler makes the next one without a name."""
        if (entries := self._current.get(None)) and entries[0].caller == threading.get_ident():
            unnamed = entries[0].name
            if type(unnamed) is Unnamed and self._has_begun and self._page.call.outcome == native.CALL_DONE:
                unnamed.counted(self._epoch)

    def _finish(self, entries: Sequence[Entry[Any]], prepared: _Prepared, batches: int) -> None:
        """Ends a call that is done. Is repeated if a signal handler interrupts it before another call may begin."""
        page, observer = self._page, self._observer
        count, number, begun_at, done_at, first, last, first_at, last_at, late_s = page.report()
        arrival: Arrival | None = None
        news: Sequence[News] = ()
        if count == page.size and observer.arrival is None:  # as usual, at the root
            arrival = first, first_at, last, last_at, late_s
        elif count:
            news = page.news_of_call(count)
        for entry, recipe in zip(entries, prepared.recipes):  # noqa: B905, of equal length
            entry.rows = recipe.rows
            entry.allocate = entry.owner = None
        self._in_flight.withdraw(entries)
        for entry in entries:
            entry.error = None  # the group may have ended after the call, and failed all that it found in flight
            entry.is_done = True
        if type(unnamed := entries[0].name) is Unnamed:
            entries[0].name = unnamed.counted(self._epoch)
            self._replica.signed_in_vain = 0
        self._release(entries)
        if arrival is not None:
            observer.all_arrived(arrival)
        else:
            for rank, was_last, at in news:
                observer.arrived(rank, was_last, at)
            arrival = observer.arrival
            observer.arrival = None
        if arrival is not None:
            self._tell(prepared.bits, arrival, done_at)
        observer.called(batches + number, entries, begun_at, done_at, arrival)

    def _tell(self, bits: int, arrival: Arrival, done_at: float) -> None:
        """Lets a turn report a call to the decider of the root; only some, while calls follow at once."""
        _, first_at, _, _, late_s = arrival
        before = self._done_at
        is_quiet = late_s < _QUIET_S and first_at - before < _QUIET_S
        self._done_at = done_at
        if is_quiet and done_at - self._reported_at < _REPORT_S:
            if bits & self._ran:
                self._ran = 0
                self._steps += 1
            self._ran |= bits
            return
        self._reports.append((bits, arrival, done_at, Unreported(self._steps, before)))
        self._steps = self._ran = 0
        if done_at - self._reported_at >= _REPORT_S:
            self._reported_at = done_at
            self._wake()

    def _report(self) -> None:
        """Reports calls to the decider of the root, in a turn."""
        with suppress(IndexError):
            while self._called is not None:
                self._called(*self._reports.popleft())

    def _release(self, entries: Sequence[Entry[Any]]) -> None:
        if self._current.get(None) is entries:
            self._has_begun = False
            self._current.pop(None, None)

    def _after_interrupt(self, entries: Sequence[Entry[Any]], prepared: _Prepared, batches: int) -> None:
        if entries[0].was_taken_up:
            pass
        elif self._current.get(None) is entries:
            outcome = self._page.call.outcome if self._has_begun else native.CALL_REFUSED
            if outcome == native.CALL_DONE:
                self._finish(entries, prepared, batches)
            elif outcome == native.CALL_REFUSED and not entries[0].was_taken_up:  # by a turn, since it was asked
                self._in_flight.withdraw(entries)
                self._release(entries)
        elif not entries[0].is_done:
            self._in_flight.withdraw(entries)
        self._wake()

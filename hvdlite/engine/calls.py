"""Blocking calls that take the short way: one native call of the caller's thread agrees on the tensor and runs it.

A rank with nothing in flight can only wait for the tensor of this call, so no turn and no batch need to be made. The
rank puts the bytes into the page before it submits the tensor; if all ranks do, each finds all the bytes there.

The native call takes a few milliseconds at most, because signal handlers do not run meanwhile, and is then resumed. If
the tensor has not run after a tenth of a second, or if another rank did not put its bytes into the page, the call is
*left*: turns go on with its entry.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final, NamedTuple

from hvdlite import native
from hvdlite.control.page import News, Page
from hvdlite.engine.batch import Recipe, is_intact, recipe_of
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.negotiation.cache import Known
from hvdlite.negotiation.delays.arrival import Arrival
from hvdlite.negotiation.delays.straggler import Untold
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import Kind
from hvdlite.negotiation.replica import Replica
from hvdlite.tensors.device import CPU

_MOST_RESUMED: Final = 12  # so for a tenth of a second; then this rank watches its peers, and is told about stalls
_QUIET_S: Final = 0.001  # a shorter pause before a call, or a shorter wait for the last rank, does not matter
_TELL_S: Final = 0.1  # the decider hears of calls at least as often


class _Prepared(NamedTuple):
    """What calls of one name need, as long as it is ``known`` so. ``recipe`` is None if they take the usual way."""

    known: Known
    recipe: Recipe | None = None
    recipe_at: int = 0


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
        called: Callable[[int, Arrival, float, Untold], None] | None,
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
        self._current: dict[None, Entry[Any]] = {}  # the entry of the call, whose thread alone may make one
        self._has_begun = False  # its outcome counts
        # For the decider of the root. Since the latest report: the bits of the current step, and the steps before.
        self._reports: deque[tuple[int, Arrival, float, Untold]] = deque()
        self._ran = self._steps = 0
        self._done_at = self._told_at = 0.0
        if called is None:  # turns do not use the page
            page.next(True)

    def run(self, entry: Entry[Any]) -> bool:
        """Runs ``entry``. False if it must be submitted in the usual way; else it is in flight, or done."""
        page, in_flight, replica = self._page, self._in_flight, self._replica
        version = page.version  # first: if something changes from here on, the native call is refused
        known = self._known.get(entry.name)
        if known is None or known.request is not entry.request:
            return False
        prepared = self._prepared.get(entry.name)
        if prepared is None or prepared.known is not known:
            prepared = self._prepare(known)
        recipe = prepared.recipe
        if recipe is None or self._observer.agreed or not is_intact(entry):
            return False
        batches = replica.batches
        owner = entry.owner  # keeps the memory, even if the end of the group finishes the entry
        if entry.allocate is not None:
            if in_flight:
                return False
            entry.output, entry.target = entry.allocate(recipe.shape, recipe.rows)
        try:
            if self._current.setdefault(None, entry) is not entry:
                return False
            entry.caller = threading.get_ident()
            if in_flight.enter_alone(entry):
                page.prepare(version, known.bit, entry.source, entry.target, recipe.nbytes, prepared.recipe_at)
                self._has_begun = True
                # What it returns, because a turn may take over a call that was left, and another call may begin.
                outcome = page.run()
                since, resumed = 0.0, 0
                while outcome > native.CALL_LEFT and resumed < _MOST_RESUMED:
                    since = since or monotonic()
                    resumed += 1
                    outcome = page.resume(outcome)
                if outcome == native.CALL_DONE:
                    self._finish(entry, prepared, batches)
                    return True
                if outcome != native.CALL_REFUSED:
                    if outcome != native.CALL_LEFT:
                        self._wake()
                    if since:
                        self._observer.waited(monotonic() - since)
                    return True
                in_flight.withdraw(entry)
            self._release(entry)
        except BaseException:
            self._after_interrupt(entry, prepared, batches)
            raise
        finally:
            del owner
        return False

    def settle(self) -> None:
        """Lets turns go on with a call that was left. Each turn begins with it."""
        if self._reports:
            self._report()
        entry = self._current.get(None)
        if entry is not None and self._page.adopt():
            entry.was_taken_up = True
            if not entry.is_done:  # else the group has ended
                self._replica.adopt(self._known[entry.name].bit, entry)
            self._release(entry)

    def count(self) -> None:
        """Counts the calls before the latest decision, for the numbers of batches."""
        self._replica.calls = self._page.call.number if self._called is None else self._page.calls

    def _prepare(self, known: Known) -> _Prepared:
        request, page = known.request, self._page
        prepared = _Prepared(known)
        definition = self._replica.cache.definitions.get(known.bit)
        if definition is not None and request.device.kind == CPU.kind and known.bit < page.names:
            recipe = recipe_of(request, definition.rows, page.size, page.rank)
            if recipe is not None and recipe.native.bytes <= page.most_bytes:
                prepared = _Prepared(known, recipe, ctypes.addressof(recipe.native))
        if len(self._prepared) >= 2 * page.names:  # of names that the cache has forgotten
            self._prepared.clear()
        self._prepared[request.name] = prepared
        return prepared

    def _finish(self, entry: Entry[Any], prepared: _Prepared, batches: int) -> None:
        """Ends a call that is done. Is repeated if a signal handler interrupts it before another call may begin."""
        page, observer = self._page, self._observer
        count, number, begun_at, done_at, first, last, first_at, last_at, late_s = page.report()
        arrival: Arrival | None = None
        news: Sequence[News] = ()
        if count == page.size and observer.arrival is None:  # as usual, at the root
            arrival = first, first_at, last, last_at, late_s
        else:
            news = page.news_of_call(count)
        if prepared.recipe is not None:
            entry.rows = prepared.recipe.rows
            entry.allocate = None
        self._in_flight.withdraw(entry)
        entry.owner = None
        entry.error = None  # the group may have ended after the call, and failed all that it found in flight
        entry.is_done = True
        self._release(entry)
        if arrival is not None:
            observer.all_arrived(arrival)
        else:
            for rank, was_last, at in news:
                observer.arrived(rank, was_last, at)
            arrival = observer.arrival
            observer.arrival = None
        if arrival is not None:
            known = prepared.known
            self._tell(0 if known.request.kind is Kind.BARRIER else 1 << known.bit, arrival, done_at)
        observer.called(batches + number, entry, begun_at, done_at, arrival)

    def _tell(self, bits: int, arrival: Arrival, done_at: float) -> None:
        """Lets a turn tell the decider of the root about a call; only about some, while calls follow at once."""
        _, first_at, _, _, late_s = arrival
        before = self._done_at
        is_quiet = late_s < _QUIET_S and first_at - before < _QUIET_S
        self._done_at = done_at
        if is_quiet and done_at - self._told_at < _TELL_S:
            if bits & self._ran:
                self._ran = 0
                self._steps += 1
            self._ran |= bits
            return
        self._reports.append((bits, arrival, done_at, Untold(self._steps, before)))
        self._steps = self._ran = 0
        if done_at - self._told_at >= _TELL_S:
            self._told_at = done_at
            self._wake()

    def _report(self) -> None:
        """Tells the decider of the root, in a turn, about calls."""
        with suppress(IndexError):
            while self._called is not None:
                self._called(*self._reports.popleft())

    def _release(self, entry: Entry[Any]) -> None:
        if self._current.get(None) is entry:
            self._has_begun = False
            self._current.pop(None, None)

    def _after_interrupt(self, entry: Entry[Any], prepared: _Prepared, batches: int) -> None:
        if entry.was_taken_up:
            pass
        elif self._current.get(None) is entry:
            outcome = self._page.call.outcome if self._has_begun else native.CALL_REFUSED
            if outcome == native.CALL_DONE:
                self._finish(entry, prepared, batches)
            elif outcome == native.CALL_REFUSED:
                self._in_flight.withdraw(entry)
                self._release(entry)
        elif not entry.is_done:
            self._in_flight.withdraw(entry)
        self._wake()

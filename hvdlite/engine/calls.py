"""Blocking calls that take the short way: one native call of the caller's thread agrees on the tensor and reduces it.

A rank with nothing in flight can only wait for the tensor of this call, so no turn and no batch need to be made. The
rank puts the bytes into the page before it submits the tensor; if all ranks do, each finds all the bytes there.

The native call takes two milliseconds at most, because signal handlers do not run meanwhile. If the tensor has not run
by then, or if another rank did not put its bytes into the page, the call is *left*: turns go on with its entry.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

from hvdlite import native
from hvdlite.control.page import News, Page
from hvdlite.engine.batch import arithmetic, is_intact
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.negotiation.cache import Known
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import Kind, Request
from hvdlite.negotiation.replica import Replica, Work
from hvdlite.tensors.device import CPU
from hvdlite.tensors.dtypes import Adasum


class _Prepared(NamedTuple):
    """What calls of one name need. ``reduction`` is None if they cannot take the short way."""

    request: Request
    bit: int
    reduction: Any


class Calls:
    """The short way of one group on this rank, which has ``page``.

    ``is_idle`` returns whether no batch is queued, ``called`` counts a call at the decider, and ``wake`` wakes the
    coordinator.
    """

    def __init__(
        self,
        page: Page,
        in_flight: InFlight,
        replica: Replica,
        observer: Observer,
        is_idle: Callable[[], bool],
        called: Callable[[list[News], int, float], None],
        wake: Callable[[], None],
    ) -> None:
        self._page = page
        self._in_flight = in_flight
        self._replica = replica
        self._known = replica.cache.known
        self._observer = observer
        self._is_idle = is_idle
        self._called = called
        self._wake = wake
        self._prepared: dict[str, _Prepared] = {}
        self._current: dict[None, Entry[Any]] = {}  # the entry of the call, if there is one

    def run(self, entry: Entry[Any]) -> bool:
        """Runs ``entry``. False if it must be submitted in the usual way; else it is in flight, or done."""
        known = self._known.get(entry.name)
        if known is None or known.request is not entry.request or type(entry) is not Entry:
            return False
        prepared = self._prepared.get(entry.name)
        if prepared is None or prepared.request is not entry.request:
            prepared = self._prepare(known)
        in_flight = self._in_flight
        if prepared.reduction is None or not (in_flight.is_idle and self._is_idle()) or not is_intact(entry):
            return False
        if self._current.setdefault(None, entry) is not entry:
            return False
        news: list[News] = []
        number = self._replica.batches + 1  # of this call's batch if it is done: turns cannot make one meanwhile
        entry.caller = threading.get_ident()
        try:
            if not in_flight.enter(entry):
                self._current.clear()
                return False
            begun = monotonic()
            outcome, news = self._page.allreduce(
                prepared.bit, entry.source, entry.target, entry.nbytes, prepared.reduction
            )
            if outcome == native.CALL_DONE:
                self._finish(entry, prepared.bit, number, news, begun)
            elif outcome == native.CALL_REFUSED:
                in_flight.withdraw(entry)
                self._current.clear()
                return False
            else:
                self._wake()
        except BaseException:
            self._after_interrupt(entry, prepared.bit, number)
            raise
        return True

    def settle(self) -> None:
        """Lets turns go on with a call that was left. Each turn begins with it."""
        entry = self._current.get(None)
        if entry is not None and self._page.call() == native.CALL_LEFT:
            entry.was_taken_up = True
            self._replica.adopt(self._known[entry.name].bit, entry)
            self._current.clear()
            self._page.end_call()

    def _prepare(self, known: Known) -> _Prepared:
        request, reduction = known.request, None
        is_sum = request.kind is Kind.ALLREDUCE and request.op != Adasum and request.device.kind == CPU.kind
        if is_sum and known.nbytes <= self._page.slot_bytes and known.bit < self._page.names:
            dtype, op, postscale = arithmetic(request, self._page.size)
            reduction = ctypes.pointer(native.Reduction(int(dtype), op, request.prescale, postscale))
        if len(self._prepared) >= 2 * self._page.names:  # of names that the cache has forgotten
            self._prepared.clear()
        self._prepared[request.name] = prepared = _Prepared(request, known.bit, reduction)
        return prepared

    def _finish(self, entry: Entry[Any], bit: int, number: int, news: list[News], begun: float) -> None:
        """Counts a call that is done, and ends it. Once more if a signal handler has interrupted that."""
        now = monotonic()
        self._replica.batches = number
        self._called(news, bit, now)
        work = Work((entry,), ((),), number, entry.nbytes)
        work.sent_at, work.agreed_at, work.moved_at = begun, now, now
        work.arrival = self._observer.arrival
        self._observer.called(work)
        self._observer.decided()
        self._current.clear()
        self._in_flight.withdraw(entry)
        entry.owner = None
        entry.is_done = True
        if self._page.end_call():
            self._wake()

    def _after_interrupt(self, entry: Entry[Any], bit: int, number: int) -> None:
        outcome = self._page.call()
        if outcome == native.CALL_DONE:
            self._finish(entry, bit, number, [], monotonic())
        elif outcome != native.CALL_LEFT and not entry.is_done:
            self._in_flight.withdraw(entry)
            self._current.clear()
        self._wake()

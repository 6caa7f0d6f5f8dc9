"""Records what the groups of this rank do, in a thread that writes it to a file.

The thread that ran a batch appends it to a deque, and does nothing else for the timeline. Batches that cannot be
written in time are dropped and counted, so that memory is bounded. If the file cannot be written, the timeline ends
with one warning, and the job continues.
"""

from __future__ import annotations

import itertools
import math
import signal
import threading
import time
from collections import deque
from functools import partial
from typing import Final

from hvdlite.engine.observer import Observer, Subscriber
from hvdlite.host.hostid import clock_id
from hvdlite.log import logger
from hvdlite.members.membership import Membership
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.replica import Work
from hvdlite.observe.timeline.events import Batch, Cycle, Events, Group, Tensor
from hvdlite.observe.timeline.sinks import Over, Sink

_INTERVAL_S: Final = 1.0
_SHARE: Final = 20  # a write that takes a second is followed by this many seconds without one,
_SHARE_IF_FULL: Final = 4  # or by this many, rather than drop batches
_MOST_TENSORS: Final = 1 << 16  # that wait to be written: with their requests, about 40 MiB
_MOST_RECORDS: Final = 1 << 15
_MOST_BYTES: Final = 4 << 20  # of texts that wait to be written; a write has some copies of them
_WAITS_S: Final = 1.0  # what is in flight for so long may never complete
_MOST_WAITING: Final = 1024
_STOP_S: Final = 10.0  # for a last write


class Recording:
    """A timeline of this rank that goes to ``sink``, until `stop`."""

    def __init__(self, sink: Sink, world: Membership, mark_cycles: bool) -> None:
        self._sink = sink
        self._events = Events(world, clock_id())
        self._mark_cycles = mark_cycles
        self._records: deque[Batch | Cycle] = deque()
        self._tensors = 0  # in the records
        self._dropped = self._dropped_in_all = 0
        self._counting = threading.Lock()
        self._watched: list[tuple[Group, Observer, Subscriber]] = []
        self._watching = threading.Lock()
        self._is_over = False
        self._stopped = threading.Event()
        self._wake = threading.Event()
        self._lines: list[str] = []
        self._bytes = 0  # of the lines
        self._began = time.monotonic()
        self._waiting: dict[tuple[int, str], tuple[int, Tensor]] = {}  # with a number, by set and name
        self._waits = itertools.count(1)
        self._just_done: set[tuple[int, str]] = set()  # these may still be listed as in flight for a moment
        self._thread = threading.Thread(target=self._serve, name="hvdlite-timeline", daemon=True)
        self._thread.start()

    def watch(self, number: int, membership: Membership, observer: Observer) -> None:
        """Records the group of the process set ``number`` from now on."""
        group = Group(number, membership)
        subscriber = partial(self._record, group)
        with self._watching:
            if self._is_over or any(observer is other for _, other, _ in self._watched):
                return
            self._watched.append((group, observer, subscriber))
            observer.keep_times(True)
            if self._mark_cycles:
                observer.on_turn = partial(self._record_turn, group)
            observer.subscribe(subscriber)

    def stop(self) -> None:
        """Writes what is recorded and ends. May be called again, and by any thread."""
        self._leave()
        self._stopped.set()
        self._wake.set()
        self._thread.join(_STOP_S)

    def _leave(self) -> None:
        with self._watching:
            self._is_over = True
            for _, observer, subscriber in self._watched:
                observer.unsubscribe(subscriber)
                observer.on_turn = None
                observer.keep_times(False)
            self._watched.clear()

    # ---- in the threads that run batches and take turns

    def _record(self, group: Group, work: Work) -> None:
        count = len(work.entries)
        if not self._has_room(count):
            return
        tensors = [_tensor(entry) for entry in work.entries]
        self._records.append(Batch(group, work, tensors))

    def _record_turn(self, group: Group) -> None:
        if self._has_room(1):
            self._records.append(Cycle(group, time.monotonic()))

    def _has_room(self, tensors: int) -> bool:
        with self._counting:
            if self._is_over:
                return False
            if self._tensors + tensors > _MOST_TENSORS or len(self._records) >= _MOST_RECORDS:
                self._dropped += 1
                return False
            self._tensors += tensors
            is_half_full = self._tensors > _MOST_TENSORS // 2 or len(self._records) > _MOST_RECORDS // 2
        if is_half_full and not self._wake.is_set():
            self._wake.set()
        return True

    # ---- in the thread that writes

    def _serve(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])  # of leases; see JsonArrayFile
        written_at, spent_s = -math.inf, 0.0
        try:
            self._events.shift = self._sink.shift()
            self._add(self._events.head(time.monotonic(), time.time()))
            while not self._is_over:
                self._format()
                self._look_for_waits(time.monotonic())
                is_full = self._bytes > _MOST_BYTES
                pause_s = _SHARE_IF_FULL * spent_s if is_full else max(_SHARE * spent_s, _INTERVAL_S)
                wait_s = written_at + pause_s - time.monotonic()
                if wait_s > 0:
                    (self._stopped if is_full else self._wake).wait(wait_s)
                    self._wake.clear()
                else:
                    begun = time.monotonic()
                    self._write()
                    written_at = time.monotonic()
                    spent_s = written_at - begun
            self._format(is_last=True)
            self._write()
        except Over:
            pass
        except OSError as error:
            logger.warning(
                "the timeline %s ends here, and the job continues without it: %s",
                self._sink.name,
                error.strerror or error,
            )
        finally:
            self._leave()
            self._sink.close()
        if self._dropped_in_all:
            logger.warning(
                "the timeline %s lacks %d batches, which came faster than they could be written",
                self._sink.name,
                self._dropped_in_all,
            )

    def _format(self, is_last: bool = False) -> None:
        """Makes texts of the records, up to `_MOST_BYTES`."""
        taken = 0
        self._just_done.clear()
        while self._records and (is_last or self._bytes <= _MOST_BYTES):
            record = self._records.popleft()
            if isinstance(record, Batch):
                self._add(self._events.batch(record))
                self._end_waits(record)
                taken += len(record.tensors)
            else:
                self._add(self._events.cycle(record))
                taken += 1
        with self._counting:
            self._tensors -= taken
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._dropped_in_all += dropped
            for key in list(self._waiting):  # perhaps they completed in those
                self._end_wait(key, time.monotonic())
            self._add(self._events.dropped(dropped, time.monotonic()))

    def _look_for_waits(self, now: float) -> None:
        """Adds tensors that have been in flight for long: otherwise those that never complete would not be shown."""
        with self._watching:
            watched = self._watched.copy()
        for group, observer, _ in watched:
            for entry in observer.in_flight():
                tensor, key = _tensor(entry), (group.number, entry.name)
                since = tensor.submitted_at or self._began
                if now - since < _WAITS_S or key in self._waiting or key in self._just_done:
                    continue
                if len(self._waiting) < _MOST_WAITING:
                    self._waiting[key] = number, _ = next(self._waits), tensor
                    self._add(self._events.waits(group, tensor, number, since))

    def _end_waits(self, batch: Batch) -> None:
        done_at = batch.work.done_at
        for tensor in batch.tensors:
            if done_at - (tensor.submitted_at or self._began) >= _WAITS_S:
                self._end_wait(key := (batch.group.number, tensor.request.name), done_at)
                self._just_done.add(key)

    def _end_wait(self, key: tuple[int, str], at: float) -> None:
        if key in self._waiting:
            number, tensor = self._waiting.pop(key)
            self._add(self._events.completes(tensor, number, at))

    def _add(self, lines: list[str]) -> None:
        self._lines += lines
        self._bytes += sum(map(len, lines))

    def _write(self) -> None:
        """Writes the texts, and measures the clock for the next ones."""
        lines, self._lines, self._bytes = self._lines, [], 0
        if lines:
            self._sink.append(",\n".join(lines).encode())
        self._events.shift = self._sink.shift()


def _tensor(entry: Entry) -> Tensor:
    try:
        return Tensor(entry.request, entry.submitted_at, entry.sent_at)
    except AttributeError:  # submitted before times were kept, or not by this rank
        return Tensor(entry.request, getattr(entry, "submitted_at", 0.0), getattr(entry, "sent_at", 0.0))

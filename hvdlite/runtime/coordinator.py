"""The thread that negotiates: tells the root what became ready here, and hands what was agreed to the executor.

The thread sleeps in one poll over the control link and a wake that submits, finished batches and shutdown set; it has
no timer unless tensors are held back on purpose or some rank is missing one. On the root it also runs the negotiator:
it cuts a batch as soon as at most one batch waits behind the running one, so that readiness accumulates, and fuses,
exactly while bytes are moving.

The end of a session reaches every rank as one `End` message, whoever causes it; the first one counts. If a rank merely
left, batches that were agreed before are still run, by all; if one was lost or failed, the plane is aborted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from hvdlite.core.bits import members
from hvdlite.core.cache import Cache
from hvdlite.core.ending import error_of
from hvdlite.core.entry import Entry
from hvdlite.core.messages import Batch, End, EndKind, Ready, Request, Response, Run
from hvdlite.core.negotiate import Negotiator
from hvdlite.core.stall import StallWatch
from hvdlite.core.wire import Message, ProtocolError
from hvdlite.dataplane.base import DataPlane
from hvdlite.errors import HvdError, Mismatch, ShutDown
from hvdlite.log import logger
from hvdlite.runtime.batch import Work
from hvdlite.runtime.control import ControlLink, Lost
from hvdlite.runtime.executor import Executor
from hvdlite.runtime.inflight import InFlight
from hvdlite.settings import Settings

_MAX_BACKLOG = 2  # one batch runs, one waits: the executor never idles and the rest goes on accumulating


class Coordinator:
    """A rank's coordinator thread with its executor, from construction to `shut_down`."""

    def __init__(self, settings: Settings, hosts: Sequence[str], link: ControlLink, plane: DataPlane) -> None:
        self._rank = settings.rank
        self._hosts = hosts
        self._link = link
        self._plane = plane
        self._wake = link.wake
        self.in_flight = InFlight(self._wake.set)
        self._executor = Executor(plane, self.in_flight, self._batch_is_done, self._batch_failed)
        self._cache = Cache()
        self._by_bit: dict[int, Entry] = {}
        self._negotiator = (
            Negotiator(settings.size, settings.cache_capacity, settings.fusion_threshold) if self._rank == 0 else None
        )
        self._hold_s = settings.cycle_time / 1000
        self._held_since: float | None = None
        warn_s = 0.0 if settings.stall_check_disable else settings.stall_check_time_seconds
        self._stall = StallWatch(warn_s, settings.stall_shutdown_time_seconds)
        self._next_stall_check: float | None = None
        self._failure: HvdError | None = None  # of a batch; set by the executor's thread
        self._gone: set[int] = set()
        self._is_leaving = False
        self._is_stopping = False
        self._end: End | None = None
        self._may_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hvdlite-coordinator", daemon=True)
        self._thread.start()

    def shut_down(self, deadline: float) -> None:
        """Leaves the session: what is not agreed yet fails on all ranks, what is agreed is still run."""
        self._is_leaving = True
        self._wake.set()
        self._may_stop.wait(max(0.0, deadline - time.monotonic()))
        if not self._executor.close(deadline):
            self._plane.abort(ShutDown(self._rank, f"rank {self._rank} shut down while a batch was running"))
            self._executor.close(time.monotonic() + 1)
        self._is_stopping = True
        self._wake.set()
        self._thread.join()
        self._link.close()
        self._plane.close()

    # ---- the thread

    def _run(self) -> None:
        while not self._is_stopping:
            was_ended = self._end is not None
            try:
                self._turn()
            except Exception as error:  # the edge of a thread: whatever it is, the waiting handles must hear of it
                cause = str(error)
                if not isinstance(error, ProtocolError):
                    logger.exception("the coordinator failed")
                    cause = f"its coordinator failed: {type(error).__name__}: {error}"
                self._announce(End(EndKind.FAILED, self._rank, self._hosts[self._rank], cause))
                if was_ended:
                    break

    def _turn(self) -> None:
        for item in self._link.receive(self._milliseconds_to_sleep(), bool(self.in_flight)):
            if isinstance(item, Lost):
                self._lose(item)
            else:
                self._take(*item)
        if new := self.in_flight.take_new():
            self._submit(new)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._announce(End(EndKind.FAILED, self._rank, self._hosts[self._rank], str(failure)))
        if self._is_leaving and self._rank not in self._gone:
            self._leave()
        if self._negotiator is not None and self._end is None:
            self._cut(self._negotiator)
            self._check_stalls(self._negotiator)

    def _submit(self, new: Sequence[Entry]) -> None:
        bits = 0
        requests: list[Request] = []
        for entry in new:
            bit = self._cache.bit_of(entry.request)
            if bit < 0:
                requests.append(entry.request)
            else:
                bits |= 1 << bit
                self._by_bit[bit] = entry
        self._tell_root(Ready(self._cache.generation, bits, tuple(requests)))

    def _tell_root(self, ready: Ready) -> None:
        if self._negotiator is None:
            self._link.send(ready)
        elif self._end is None:
            self._negotiator.receive(0, ready)

    def _take(self, sender: int, message: Message) -> None:
        if isinstance(message, Run) and self._negotiator is None:
            self._apply(message)
        elif isinstance(message, Ready) and self._negotiator is not None:
            if self._end is None:
                self._negotiator.receive(sender, message)
        elif isinstance(message, End):
            if message.kind is EndKind.LEFT:
                self._gone.add(message.rank)
            if self._negotiator is not None:
                self._announce(message)
            else:
                self._finish(message)
        else:
            raise ProtocolError(f"rank {sender} sent a message that is not its to send")

    # ---- batches

    def _cut(self, negotiator: Negotiator) -> None:
        if not negotiator.has_agreed or self._executor.backlog >= _MAX_BACKLOG:
            return
        if self._hold_s > 0:
            now = time.monotonic()
            self._held_since = self._held_since or now
            if now - self._held_since < self._hold_s:
                return
            self._held_since = None
        run = negotiator.cut()
        if run is not None:
            self._link.send(run)
            self._apply(run)

    def _apply(self, run: Run) -> None:
        if self._cache.begin(run.generation):
            self._by_bit.clear()
        for batch in run.batches:
            entries, rows = self._known(batch)
            for response in batch.responses:
                entry = self._entry(response)
                if response.error:
                    self.in_flight.finish((entry,), Mismatch(response.error))
                    continue
                if response.bit >= 0:
                    self._cache.remember(response.bit, entry.request, response.rows)
                entries.append(entry)
                rows.append(response.rows)
            if entries:
                self._executor.put(Work(entries, rows))

    def _known(self, batch: Batch) -> tuple[list[Entry], list[tuple[int, ...]]]:
        if not batch.bits:
            return [], []
        bits = members(batch.bits)
        try:
            return [self._by_bit.pop(bit) for bit in bits], [self._cache.rows(bit) for bit in bits]
        except KeyError as error:
            raise ProtocolError(f"rank 0 wants tensor {error} run, which this rank did not submit") from None

    def _entry(self, response: Response) -> Entry:
        entry = self.in_flight.find(response.name)
        if entry is None:
            raise ProtocolError(f"rank 0 answered {response.name!r}, which this rank did not submit")
        return entry

    def _batch_is_done(self) -> None:
        if self._negotiator is not None and self._negotiator.has_agreed:
            self._wake.set()

    def _batch_failed(self, error: HvdError) -> None:
        if self._end is None:
            self._failure = error
            self._wake.set()

    # ---- waiting for ranks

    def _check_stalls(self, negotiator: Negotiator) -> None:
        if self._stall.interval_s is None or not negotiator.is_waiting:
            self._next_stall_check = None
            return
        now = time.monotonic()
        if self._next_stall_check is None:  # most waits end at once: nothing is looked at until one has lasted
            self._next_stall_check = now + self._stall.interval_s
        if now < self._next_stall_check:
            return
        self._next_stall_check = now + self._stall.interval_s
        report = self._stall.check(negotiator.waiting(), now)
        if report.warning:
            logger.warning(report.warning)
        if report.fatal:
            late = report.fatal[0][0]
            self._announce(End(EndKind.STALLED, late, self._hosts[late], "", report.waited_s, report.fatal))

    def _milliseconds_to_sleep(self) -> int | None:
        wake_at = [self._next_stall_check] if self._next_stall_check is not None else []
        if self._held_since is not None:
            wake_at.append(self._held_since + self._hold_s)
        return max(0, int((min(wake_at) - time.monotonic()) * 1000) + 1) if wake_at else None

    # ---- the end

    def _lose(self, lost: Lost) -> None:
        if lost.rank not in self._gone:
            self._announce(End(EndKind.LOST, lost.rank, self._hosts[lost.rank], lost.cause))

    def _leave(self) -> None:
        self._gone.add(self._rank)
        left = End(EndKind.LEFT, self._rank, self._hosts[self._rank], "it called shutdown()")
        if self._negotiator is not None or self._end is not None:
            self._announce(left)
        else:
            self._link.send(left)  # the root's answer ends the session here

    def _announce(self, end: End) -> None:
        """Ends the session here and tells all ranks."""
        self._finish(end)
        self._link.send(end)

    def _finish(self, end: End) -> None:
        error = error_of(end)
        if end.kind is not EndKind.LEFT:
            self._plane.abort(error)  # even after the end: a batch agreed before it may wait for the rank that is lost
        self._may_stop.set()  # the root agrees no batch after an end
        if self._end is not None:
            return
        self._end = end
        self._held_since = self._next_stall_check = None
        self.in_flight.end(error)
        agreed = self._executor.entries()
        self.in_flight.finish([entry for entry in self.in_flight.all() if entry not in agreed], error)

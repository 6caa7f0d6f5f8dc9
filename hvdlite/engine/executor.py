"""Moves bytes: runs batches one at a time, in the order in which they were agreed, each with one native call.

Batches run in the executor's thread, or in a thread that waits for a result (`run_here`), which saves two switches
between threads. A thread that holds the lock runs all queued batches, and checks the queue again after it released the
lock. So a batch that is queued while another thread holds the lock is never left over.

If a device moves the bytes, the executor goes on with the next batch, and `DeviceCompletions` waits for the device.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import cast

from hvdlite.control.page import Page
from hvdlite.engine.batch import collect, run
from hvdlite.engine.device_completions import DeviceCompletions
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.main_thread import Drive
from hvdlite.engine.observer import Observer
from hvdlite.errors import HorovodInternalError, HvdError
from hvdlite.negotiation.entry import Entry, OnDevice, memory_of
from hvdlite.negotiation.messages import Kind
from hvdlite.negotiation.replica import Work
from hvdlite.planes.base import Completion, Planes
from hvdlite.scope import Scope
from hvdlite.tensors.streams import Launch


class Executor:
    """Runs batches until `close`.

    ``on_done`` is called when the executor's thread has run batches, and ``on_failure`` with the error of each batch
    that failed. A failed batch fails its entries; later batches fail too, because the plane stays aborted.
    """

    def __init__(
        self,
        planes: Planes,
        in_flight: InFlight,
        observer: Observer,
        on_done: Callable[[], None],
        on_failure: Callable[[HvdError], None],
        page: Page | None = None,
        progress_timeout_s: float = 0.0,
    ) -> None:
        self._planes = planes
        self._page = page
        self._progress_timeout_s = progress_timeout_s  # of what moves in the page
        self._in_flight = in_flight
        self._observer = observer
        self._on_done = on_done
        self._on_failure = on_failure
        self._unfinished: deque[Work] = deque()
        observer.agreed = self._unfinished
        self._issued: dict[str, DeviceCompletions] = {}  # by kind of device
        self._is_running = threading.Lock()  # held by the thread that runs batches
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: there is work; False: the end
        self._thread = threading.Thread(target=self._serve, name="hvdlite-executor", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        """Number of batches that run or wait to run, without the issued ones."""
        return len(self._unfinished)

    @property
    def is_issuing(self) -> bool:
        """True if a device has not completed some issued batch."""
        return any(issued.works() for issued in list(self._issued.values()))

    def entries(self) -> set[Entry]:
        """Returns the entries of all unfinished batches."""
        works = list(self._unfinished)  # read first, because batches move from here to the issued ones
        for issued in list(self._issued.values()):
            works += issued.works()
        return {entry for work in works for entry in work.entries}

    def put(self, work: Work) -> None:
        """Queues a batch. `run_here` or `wake` must follow."""
        self._unfinished.append(work)

    def wake(self) -> None:
        """Wakes the executor's thread if a batch is queued."""
        if self._unfinished:
            self._tokens.put(True)

    def run_here(self, until: Drive | None = None) -> bool:
        """Runs queued batches in this thread, until ``until`` is done or the queue is empty. False if it ran none."""
        has_run = False
        while self._unfinished and self._is_running.acquire(blocking=False):
            try:
                while self._unfinished and not (until is not None and until.is_done):
                    self._run_first()
                    has_run = True
            finally:
                self._is_running.release()
            if until is not None and until.is_done:
                self.wake()
                break
        return has_run

    def abort(self, error: HvdError) -> None:
        """Has the batch that runs, and all later ones, fail with ``error``. Any thread."""
        self._planes.abort(error)
        if self._page is not None:
            self._page.give_up(error)

    def close(self, scope: Scope) -> bool:
        """Ends the thread once all queued batches have finished.

        False if they have not finished when ``scope`` is over.
        """
        self._tokens.put(True)
        self._tokens.put(False)
        self._thread.join(scope.timeout_s)
        is_idle = not self._thread.is_alive() and self._is_running.acquire(
            timeout=min(scope.left_s, threading.TIMEOUT_MAX)
        )
        if is_idle:
            self._is_running.release()
        return is_idle and all(issued.close(scope) for issued in self._issued.values())

    def _serve(self) -> None:
        while self._tokens.get():
            if self.run_here():
                self._on_done()
        while self._unfinished:  # left over by a thread that held the lock until its own handle was done
            with self._is_running:
                pass
            self.run_here()

    def _run_first(self) -> None:
        work = self._unfinished[0]
        work.moved_at = time.monotonic()
        completion: Completion | None = None
        error: Exception | None = None
        try:
            if self._issued and work.entries[0].request.kind is Kind.JOIN:  # a join ends after all batches before it
                for issued in self._issued.values():
                    issued.drain()
            if work.is_carried and self._page is not None:
                collect(work, self._page, self._progress_timeout_s)
            else:
                completion = run(work, self._planes)
            if completion is not None:
                self._issue(work, completion)
        except Exception as raised:  # of any type: the waiting handles must fail with it
            error = raised
        if error is not None or completion is None:
            self._finish(work, error)
        self._unfinished.popleft()

    def _issue(self, work: Work, completion: Completion) -> None:
        kind = work.entries[0].request.device.kind
        if kind not in self._issued:
            try:
                self._issued[kind] = DeviceCompletions(self._finish)
            except Exception:  # no thread could be started
                completion.wait()  # the batch fails, and its tensors must not be freed while the device has them
                raise
        launched = [entry for entry in work.entries if isinstance(entry, OnDevice)]
        for entry in launched:
            entry.launch = cast(Launch, completion)
        self._issued[kind].put(work, completion, [memory_of(entry) for entry in work.entries])
        if launched:  # done now: streams order what follows
            self._in_flight.finish(launched)

    def _finish(self, work: Work, raised: Exception | None) -> None:
        error = None
        if raised is not None:
            error = raised if isinstance(raised, HvdError) else _failure(work, raised)
            self._on_failure(error)  # first: the program may shut down when it wakes, and the other ranks must know why
        self._observer.done(work)
        self._in_flight.finish(work.entries, error)
        work.entries = work.rows = ()  # subscribers may keep the work, but not its tensors
        if self._in_flight.keeps_times:
            work.finished_at = time.monotonic()


def _failure(work: Work, cause: Exception) -> HvdError:
    names = ", ".join(entry.name for entry in work.entries[:3])
    failure = HorovodInternalError(f"running {names} failed: {type(cause).__name__}: {cause}")
    failure.__cause__ = cause
    return failure

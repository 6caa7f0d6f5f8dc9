"""What a call on a process group returns: its result is visible after `wait`, and in its future."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
from torch import distributed

from hvdlite.errors import HvdError
from hvdlite.ops import Group, GroupHandle, Handle, synchronize

Result = list[torch.Tensor]
_NO_TIMEOUT: Final = timedelta(0)
_Base: Any = distributed._Work  # type: ignore[attr-defined]


class Futures:
    """Threads that complete the futures of a group, in the order of their calls. The first starts with the first one.

    A callback runs in the thread that completes its future, and may wait for a later future. So the next thread goes
    on as soon as a future is complete, before its callbacks. Usually two threads take turns.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._works: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._turn = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._parked = 0

    def make(self) -> torch.futures.Future[Result]:
        """Returns a future for `put`."""
        future: torch.futures.Future[Result] = torch.futures.Future()
        future.add_done_callback(lambda _: self._go_on())  # the first callback
        return future

    def put(self, work: Work) -> None:
        """Has the future of ``work`` completed."""
        self._works.put(work)
        with self._lock:
            if not self._threads:
                self._start()

    def close(self) -> None:
        """Ends the threads after the works that they have. To be called once the group has ended."""
        if self._threads:
            self._works.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _go_on(self) -> None:
        with self._lock:
            if not self._wake_next():
                self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _wake_next(self) -> bool:
        is_parked = self._parked > 0
        if is_parked:
            self._parked -= 1
            self._turn.release()
        return is_parked

    def _serve(self) -> None:
        while (work := self._works.get()) is not None:
            work.complete()
            with self._lock:
                self._parked += 1
            self._turn.acquire()
        self._works.put(None)  # for the next thread
        with self._lock:
            self._wake_next()


class _Waiter:
    """Tells a thread that a call is done, which does not wait for longer than it likes."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def release(self) -> None:
        self.event.set()


class Work(_Base):  # type: ignore[misc]
    """A call that is in flight or done.

    ``handle`` is that of its collective, and ``finish`` makes its result of the handle's, once. Errors are
    `torch.distributed.DistBackendError`, whose cause is the error of hvdlite.
    """

    def __init__(
        self,
        group: Group,
        futures: Futures,
        handle: Handle[Any] | GroupHandle[Any] | None,
        finish: Callable[[Any], Result],
        sender: int = -1,
    ) -> None:
        super().__init__()
        self._group = group
        self._futures = futures
        self._handle = handle
        self._finish: Callable[[Any], Result] | None = finish
        self._sender = sender
        self._lock = threading.Lock()
        self._result: Result = []
        self._error: Exception | None = None
        self._future: torch.futures.Future[Result] | None = None

    def complete(self) -> None:
        """Waits for the call, and completes its future. Keeps its error."""
        with self._lock:
            if self._finish is not None:
                try:
                    self._result = self._finish(None if self._handle is None else synchronize(self._handle))
                except HvdError as error:
                    self._error = distributed.DistBackendError(str(error))
                    self._error.__cause__ = error
                except Exception as error:  # of memory that the result does not fit
                    self._error = error
                self._finish = None
            future, is_new = self._future, self._future is not None and not self._future.done()
        if future is not None and is_new:
            if self._error is None:
                future.set_result(self._result)
            else:
                future.set_exception(self._error)  # type: ignore[arg-type]

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Returns True once the result is visible. Raises DistBackendError if the call failed, or takes too long."""
        if timeout > _NO_TIMEOUT and not self._is_done_within(timeout.total_seconds()):
            raise distributed.DistBackendError(f"{self!r} is not done after {timeout.total_seconds():g} s")
        if self._future is None:
            self.complete()
        else:
            self._future.wait()  # so that works complete in their order
        if self._error is not None:
            raise self._error
        return True

    def _is_done_within(self, seconds: float) -> bool:
        handles: Sequence[Any] = self._handle.handles if isinstance(self._handle, GroupHandle) else (self._handle,)
        return all(is_done_within(self._group, handle, seconds) for handle in handles)

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future[Result]:
        """Returns the future of the result, a list of tensors."""
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = self._futures.make()
        self._futures.put(self)
        return self._future

    def is_completed(self) -> bool:
        return self._finish is None or self._handle is None or self._handle.has_result

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        if self.is_completed():
            self.complete()
        return self._error

    def result(self) -> Result:
        self.wait()
        return self._result

    def source_rank(self) -> int:
        return self._sender

    _source_rank = source_rank

    def __repr__(self) -> str:
        return f"<Work of {self._handle!r}>"


class Works(Work):
    """Several calls as one."""

    def __init__(self, group: Group, futures: Futures, works: Sequence[Work]) -> None:
        super().__init__(group, futures, None, lambda output: [each for work in works for each in work.result()])
        self._works = works

    def complete(self) -> None:
        for work in self._works:
            work.complete()
        super().complete()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def _is_done_within(self, seconds: float) -> bool:
        return all(work._is_done_within(seconds) for work in self._works)


def is_done_within(group: Group, handle: Handle[Any], seconds: float) -> bool:
    """Waits for ``handle``. False if it is not done after ``seconds``."""
    waiter = _Waiter()
    return not group.watch(handle, waiter) or waiter.event.wait(seconds)


def nothing(output: Any) -> Result:
    """Finishes a call without a result."""
    return []


def given(tensors: Sequence[torch.Tensor]) -> Callable[[Any], Result]:
    """Returns what finishes a call that has written into ``tensors``."""
    listed = list(tensors)
    return lambda output: listed

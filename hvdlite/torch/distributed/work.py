"""What a call on a process group returns: its result is visible after `wait`, and in its future."""

from __future__ import annotations

import threading
from collections import deque
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
    """Threads that complete the futures of a group, in the order of their calls. They start when they are needed.

    A callback runs in the thread that completes its future, and may wait for a later future. So another thread may go
    on as soon as a future is complete, before its callbacks.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._works: deque[Work] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._is_led = False  # a thread waits for the next work
        self._is_closed = False

    def put(self, work: Work) -> None:
        """Has the future of ``work`` completed after those before it."""
        with self._changed:
            if not self._is_closed:
                self._works.append(work)
                self._call_thread()
                return
        work.complete()

    def go_on(self) -> None:
        """Lets another thread complete the next future."""
        with self._changed:
            self._is_led = False
            self._call_thread()

    def close(self, limit_s: float | None = None) -> None:
        """Ends the threads after the works that they have; to be called once the group has ended.

        With a limit, the process is about to exit, and what has not ended by then is left.
        """
        with self._changed:
            self._is_closed = True
            if limit_s is not None:
                self._works.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(limit_s)

    def _call_thread(self) -> None:
        if self._is_led or not self._works:
            return
        if self._idle:
            self._changed.notify()
            return
        thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            work.complete()
            del work  # which keeps its tensors

    def _next(self) -> Work | None:
        with self._changed:
            while self._is_led or not self._works:
                if self._is_closed and not self._works:
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            self._is_led = True
            return self._works.popleft()


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
        self._is_due: torch.futures.Future[None] | None = None  # by which the future is completed
        self._future: torch.futures.Future[Result] | None = None

    def complete(self) -> None:
        """Waits for the call, and completes its future."""
        self._settle()
        assert self._is_due is not None
        self._is_due.set_result(None)

    def _settle(self) -> None:
        """Waits for the call, and makes its result visible. Keeps its error."""
        output = error = None
        try:
            if self._finish is not None and self._handle is not None:
                self._wait_for_handles()
        except HvdError as failure:
            error = failure
        with self._lock:
            if self._finish is None:
                return
            try:
                if error is not None:
                    raise error
                output = None if self._handle is None else synchronize(self._handle)
                with torch.inference_mode():  # or writing would be recorded, or refused for parameters
                    self._result = self._finish(output)
            except HvdError as failure:
                self._error = backend_error(failure)
            except Exception as failure:  # of tensors that the result does not fit
                self._error = failure
            self._finish = None

    def _wait_for_handles(self) -> None:
        handles: Sequence[Any] = self._handle.handles if isinstance(self._handle, GroupHandle) else (self._handle,)
        for handle in handles:
            if not handle.is_done:
                self._group.wait(handle)

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Returns True once the result is visible. Raises DistBackendError if the call failed, or takes too long."""
        if timeout > _NO_TIMEOUT and not self._is_done_within(timeout.total_seconds()):
            raise distributed.DistBackendError(f"{self!r} is not done after {timeout.total_seconds():g} s")
        self._settle()
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
            self._is_due = torch.futures.Future()
            # An error that `then` raises is one for C++, too; one that is set is a value there.
            future = self._future = self._is_due.then(self._outcome)
        future.add_done_callback(lambda _: self._futures.go_on())  # the first callback
        self._futures.put(self)
        return future

    def _outcome(self, due: object) -> Result:
        if self._error is not None:
            raise self._error
        return self._result

    def is_completed(self) -> bool:
        if self._finish is not None and (self._handle is None or self._handle.has_result):
            self._settle()
        return self._finish is None

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        self.is_completed()
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
        super().__init__(group, futures, None, lambda _: [each for work in works for each in work.result()])
        self._works = works

    def _settle(self) -> None:
        for work in self._works:
            work._settle()
        super()._settle()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works) and super().is_completed()

    def _is_done_within(self, seconds: float) -> bool:
        return all(work._is_done_within(seconds) for work in self._works)


def backend_error(error: HvdError) -> Exception:
    """Returns torch's error for ``error``, its cause."""
    found = distributed.DistBackendError(str(error))
    found.__cause__ = error
    return found


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

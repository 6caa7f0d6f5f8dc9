"""Waits for the batches that a device completes after the call of its plane has returned.

Threads that negotiate and run batches never wait for a device: the executor goes on once it has issued a batch to the
plane, and a thread of `DeviceCompletions` waits for the device.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from hvdlite.negotiation.replica import Work
from hvdlite.planes.base import Completion
from hvdlite.scope import Scope


class DeviceCompletions:
    """The batches issued to one plane that its device has not completed, in order.

    ``finish`` is called with each batch, and with None or the error that its completion raised.
    """

    def __init__(self, finish: Callable[[Work, Exception | None], None]) -> None:
        self._finish = finish
        self._works: deque[Work] = deque()
        self._due: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="hvdlite-completions", daemon=True)
        self._thread.start()

    def put(self, work: Work, completion: Completion, memory: Any = None) -> None:
        """Finishes ``work`` when ``completion`` is done, and keeps a reference to ``memory`` until then."""
        self._works.append(work)
        self._due.put(partial(self._wait, completion, memory))

    def works(self) -> list[Work]:
        """Returns the unfinished batches."""
        return list(self._works)

    def drain(self) -> None:
        """Waits until all batches that were put earlier are finished."""
        is_drained = threading.Event()
        self._due.put(is_drained.set)
        is_drained.wait()

    def close(self, scope: Scope) -> bool:
        """Ends the thread once all batches are finished. False if some are not when ``scope`` is over.

        May be called again. No `put` may follow.
        """
        if not self._is_closing:
            self._is_closing = True
            self._due.put(None)
        self._thread.join(scope.timeout_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while (step := self._due.get()) is not None:
            step()
            step = None  # frees the completion's memory now, not when the next batch comes

    def _wait(self, completion: Completion, memory: Any) -> None:
        error: Exception | None = None
        try:
            completion.wait()
        except Exception as raised:  # of any type: the waiting handles must fail with it
            error = raised
        self._finish(self._works[0], error)
        self._works.popleft()
        del memory  # the traceback of a kept error refers to this frame

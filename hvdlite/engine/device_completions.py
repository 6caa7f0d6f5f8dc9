"""Finishes batches that a device completes after its plane has taken them.

Threads that negotiate and run batches never wait for a device. The executor goes on once the plane has a batch,
and a thread here waits in its place.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from hvdlite.negotiation.replica import Work
from hvdlite.planes.base import Completion


class Issued:
    """The batches that one plane has taken and its device has not completed, in order.

    ``finish`` is called with each batch and None, or what its completion raised.
    """

    def __init__(self, finish: Callable[[Work, Exception | None], None]) -> None:
        self._finish = finish
        self._works: deque[Work] = deque()
        self._due: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="hvdlite-issued", daemon=True)
        self._thread.start()

    def put(self, work: Work, completion: Completion, memory: Any = None) -> None:
        """Finishes ``work`` when ``completion`` is done, and keeps ``memory`` until then."""
        self._works.append(work)
        self._due.put(partial(self._wait, completion, memory))

    def works(self) -> list[Work]:
        """Returns the unfinished batches."""
        return list(self._works)

    def drain(self) -> None:
        """Waits until all batches put before are finished."""
        is_drained = threading.Event()
        self._due.put(is_drained.set)
        is_drained.wait()

    def close(self, deadline: float) -> bool:
        """Ends the thread when all is finished. False if that is not so by ``deadline``, on the monotonic clock.

        Nothing may be put afterwards. May be called again.
        """
        if not self._is_closing:
            self._is_closing = True
            self._due.put(None)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while (step := self._due.get()) is not None:
            step()
            step = None  # what its completion holds goes now, not when the next batch comes

    def _wait(self, completion: Completion, memory: Any) -> None:
        error: Exception | None = None
        try:
            completion.wait()
        except Exception as raised:  # whatever it is, the waiting handles must fail with it
            error = raised
        self._finish(self._works[0], error)
        self._works.popleft()
        del memory  # an error that is kept has this frame

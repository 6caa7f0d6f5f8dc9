"""The thread that moves bytes: runs batches in the order in which they were agreed, one native call each."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from hvdlite.core.entry import Entry
from hvdlite.dataplane.base import DataPlane
from hvdlite.errors import HorovodInternalError, HvdError
from hvdlite.runtime.batch import Work, run
from hvdlite.runtime.inflight import InFlight


class Executor:
    """Runs work from a queue until it is closed.

    ``on_done`` is called after each batch and ``on_failure`` with the error of a batch that failed, both from the
    executor's thread. A failed batch fails its entries; what follows it fails too, because the plane stays aborted.
    """

    def __init__(
        self,
        plane: DataPlane,
        in_flight: InFlight,
        on_done: Callable[[], None],
        on_failure: Callable[[HvdError], None],
    ) -> None:
        self._plane = plane
        self._in_flight = in_flight
        self._on_done = on_done
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._unfinished: deque[Work] = deque()
        self._thread = threading.Thread(target=self._serve, name="hvdlite-executor", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        """Batches that are running or waiting to run."""
        return len(self._unfinished)

    def entries(self) -> set[Entry]:
        """The entries of those batches."""
        return {entry for work in list(self._unfinished) for entry in work.entries}

    def put(self, work: Work) -> None:
        """Queues a batch. Only the coordinator calls this."""
        self._unfinished.append(work)
        self._queue.put(work)

    def close(self, deadline: float) -> bool:
        """Lets queued batches finish, then ends the thread. False if they have not finished by ``deadline``."""
        self._queue.put(None)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            error = self._run(work)
            self._in_flight.finish(work.entries, error)
            self._unfinished.popleft()
            if error is not None:
                self._on_failure(error)
            self._on_done()
            del work  # the tensors of a finished batch belong to the user again

    def _run(self, work: Work) -> HvdError | None:
        try:
            run(work, self._plane)
        except HvdError as error:
            return error
        except Exception as error:  # the edge of a thread: whatever it is, the waiting handles must hear of it
            names = ", ".join(entry.request.name for entry in work.entries[:3])
            failure = HorovodInternalError(f"running {names} failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            return failure
        return None

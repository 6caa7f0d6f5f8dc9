"""What the workers write: it is read only while the outbox to hvdrun has room."""

from __future__ import annotations

import os
from functools import partial
from typing import Final

from ..stream.loop import Loop
from ..stream.messages import encode
from ..stream.outbox import Outbox
from .ranks.workers import Worker, Workers

_READ_BYTES: Final = 64 << 10
_PIPE_BYTES: Final = 1 << 20  # the most that Linux lets an unprivileged pipe hold


class Outputs:
    """Passes the output of ``workers`` on to hvdrun."""

    def __init__(self, loop: Loop, outbox: Outbox, workers: Workers) -> None:
        self._loop, self._outbox, self._workers = loop, outbox, workers

    def attend(self, worker: Worker) -> None:
        """Passes on what ``worker`` writes from now on."""
        for pipe in worker.pipes:
            self._watch(worker, pipe)

    def finish(self, worker: Worker) -> None:
        """Passes on what is left; a process that ``worker`` left behind may hold its pipes open and write on."""
        for pipe in tuple(worker.pipes):
            self._read(worker, pipe, limit=_PIPE_BYTES)

    def hold(self, is_held: bool) -> None:
        """Stops to read, or goes on."""
        for worker in self._workers:
            for pipe in worker.pipes:
                if is_held:
                    self._loop.unwatch(pipe)
                else:
                    self._watch(worker, pipe)

    def _watch(self, worker: Worker, pipe: int) -> None:
        if not self._outbox.is_full:
            self._loop.watch(pipe, partial(self._read, worker, pipe))

    def _read(self, worker: Worker, pipe: int, limit: int = _READ_BYTES) -> None:
        """Sends what is in ``pipe``, up to ``limit`` bytes, and closes it at its end."""
        while limit > 0:
            try:
                data = os.read(pipe, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._loop.unwatch(pipe)
                os.close(pipe)
                del worker.pipes[pipe]
                return
            self._outbox.write(encode(worker.pipes[pipe](worker.rank, data)))
            limit -= len(data)

"""Looks into the black boxes of the running workers, and sends hvdrun what the ranks found out."""

from __future__ import annotations

import base64
import math
import mmap
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from hvdlite.blackbox import format as blackbox
from hvdlite.blackbox.times import Spent, spent_by

from ...stream.messages import Box, Found, encode
from ..ranks.connections import Connections
from ..ranks.workers import Worker, Workers
from .evidence import Evidence
from .status import status_of
from .unresponsive import Unresponsive

if TYPE_CHECKING:
    from ...stream.questions import Boxes, Status

_PERIOD_S: Final = 0.25  # between looks for findings, which cost a read of memory or a few
_FULL_PERIOD_S: Final = 1.0  # between looks at everything


class Watch:
    """Watches ``workers``, and passes frames to ``send``. If ``keeps_boxes``, hvdrun gets those of ranks that end."""

    def __init__(self, workers: Workers, send: Callable[[bytes], None]) -> None:
        self._workers, self._send = workers, send
        self._memories: dict[int, mmap.mmap] = {}  # by rank
        self._reported: dict[int, int] = {}  # by rank, the number of its latest finding
        self._unresponsive = Unresponsive()
        self.evidence = Evidence()
        self._connections = Connections()
        self.keeps_boxes = False
        self.due: float | None = None
        self._full_due = -math.inf

    @property
    def answers(self) -> Mapping[str, Callable[[Any], Any]]:
        """The functions that answer questions about the workers."""
        return {"Status": self.status, "Boxes": self.boxes, "Evidence": self.evidence.answer}

    def begin(self, worker: Worker, now: float) -> None:
        """Looks after ``worker`` too, if it has a black box, at ``now`` on the monotonic clock for the first time."""
        if worker.blackbox is None:
            return
        with suppress(OSError):  # no more descriptors; the job does without
            self._memories[worker.rank] = mmap.mmap(worker.blackbox, blackbox.NBYTES, prot=mmap.PROT_READ)
            self.evidence.begin(worker, self._memories[worker.rank])
            self._connections.begin(worker, self._memories[worker.rank], now)
            self.due = self.due or now

    def tick(self, now: float) -> None:
        """Looks, if it is time."""
        if self.due is not None and now >= self.due:
            for rank, memory in self._memories.items():
                self._report_findings(rank, memory)
            if now >= self._full_due:
                for rank, memory in self._memories.items():
                    if (finding := self._unresponsive.look(rank, memory, now)) is not None:
                        self._send(encode(Found(rank, finding)))
                self.evidence.look(now)
                self._connections.look(now)
                self._full_due = now + _FULL_PERIOD_S
            self.due = now + _PERIOD_S

    def end(self, worker: Worker, now: float) -> tuple[Spent | None, bool]:
        """Looks for the last time: ``worker`` has ended. Returns what it had spent, and whether it ran alone.

        Neither is known without a black box.
        """
        spent, is_alone = None, False
        if (memory := self._memories.pop(worker.rank, None)) is not None:
            self._report_findings(worker.rank, memory)
            spent = spent_by(blackbox.quantities(memory), now)
            last = next(blackbox.newest(memory), None)
            if last is not None:  # which a rank that was killed has not counted
                spent = spent._replace(batches=max(spent.batches, last.position + 1.0))
            self.evidence.end(worker.rank)
            is_alone = self._connections.end(worker.rank, now)
            if self.keeps_boxes and (box := packed(worker.rank, memory)):
                self._send(encode(box))
            memory.close()
        if not self._memories:
            self.due = None
        return spent, is_alone

    def status(self, question: Status) -> list[dict[str, Any]]:
        """What the workers of these ranks are doing that have not ended. For any thread."""
        found = []
        for worker in [each for each in tuple(self._workers) if each.rank in question.ranks]:
            with suppress(ValueError):  # it ends just now
                if worker.process.returncode is None:
                    memory = self._memories.get(worker.rank)
                    found.append(status_of(worker.rank, worker.process.pid, memory, time.monotonic()))
        return found

    def boxes(self, question: Boxes) -> list[dict[str, Any]]:
        """The black boxes of those of these ranks that have not ended. For any thread."""
        found = []
        for rank in question.ranks:
            with suppress(ValueError):  # it ends just now
                memory = self._memories.get(rank)
                if memory is not None and (box := packed(rank, memory)):
                    found.append(box._asdict())
        return found

    def _report_findings(self, rank: int, memory: mmap.mmap) -> None:
        for number, finding in blackbox.findings(memory, self._reported.get(rank, 0)):
            self._reported[rank] = number
            self._send(encode(Found(rank, finding)))


def packed(rank: int, memory: blackbox.Memory) -> Box | None:
    """What ``rank`` has written, as it travels to hvdrun and is kept in a file; None if it has not begun to.

    ``at`` is now on the host's monotonic clock, and ``epoch_s`` what that showed, below zero, at the Unix epoch.
    """
    now = time.monotonic()
    if blackbox.look(memory) is None:
        return None
    text = base64.b64encode(zlib.compress(memory[:], 1)).decode()  # a copy, since the rank writes on
    return Box(rank, now, now - time.time(), text)

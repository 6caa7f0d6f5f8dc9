"""Buffers of pinned memory, and the two streams of a GPU that fill and empty them.

While the host works on one piece, the GPU copies the next ones down and the last one up: it has an engine for each
direction. A buffer is filled again when it has been emptied, for which one stream waits for the other and no host does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from typing import Final

from hvdlite.cuda import driver
from hvdlite.cuda.events import Events, Moment, latest
from hvdlite.cuda.memory import PinnedMemory
from hvdlite.cuda.streams import Stream
from hvdlite.errors import HorovodInternalError
from hvdlite.planes.staged.pieces import Copy, LayOut, Piece

BUFFERS: Final = 3
"""One that is filled, one that the host works on, and one that is emptied."""


class Pipeline:
    """Moves pieces through buffers of ``nbytes``, on the GPU of ``events``."""

    def __init__(self, events: Events, nbytes: int) -> None:
        self.context = events.context
        self._events = events
        self._emptied: list[Moment | None] = [None] * BUFFERS
        self._begun = 0  # pieces, of all collectives
        with ExitStack() as made:
            self.down, self.up = (made.enter_context(closing(Stream(self.context))) for _ in range(2))
            self._buffers = [made.enter_context(closing(PinnedMemory(self.context, nbytes))) for _ in range(BUFFERS)]
            self._made = made.pop_all()

    def run(self, pieces: Iterable[LayOut], marks: Iterable[Moment], check: Callable[[], None]) -> Moment:
        """Does ``pieces``, at least one, once the GPU has passed ``marks``; returns when the last copy up ends.

        ``check`` is called before each piece, and may raise. If anything raises, the GPU copies nothing any more.
        """
        try:
            for mark in latest(marks):
                mark.event.hold_back(self.down.handle)
            return self._run(iter(pieces), check)
        except BaseException:
            for stream in (self.down, self.up):
                with suppress(HorovodInternalError):  # a GPU that has failed does nothing any more
                    stream.synchronize()
            raise

    def close(self) -> None:
        """Frees everything. May be called twice; nothing must run."""
        self._made.close()

    def _run(self, pieces: Iterator[LayOut], check: Callable[[], None]) -> Moment:
        ahead: deque[tuple[Piece, int, Moment]] = deque()
        emptied = None
        while True:
            while len(ahead) < BUFFERS and (lay_out := next(pieces, None)) is not None:
                ahead.append(self._fill(lay_out))
            if not ahead:
                assert emptied is not None
                return emptied
            piece, buffer, filled = ahead.popleft()
            filled.event.wait()  # also if nothing is copied, since marks may hold back the stream
            check()
            piece.move()
            self._copy(piece.up, self.up)
            self._emptied[buffer] = emptied = self._moment(self.up)

    def _fill(self, lay_out: LayOut) -> tuple[Piece, int, Moment]:
        buffer, self._begun = self._begun % BUFFERS, self._begun + 1
        if (emptied := self._emptied[buffer]) is not None:
            emptied.event.hold_back(self.down.handle)
        piece = lay_out(self._buffers[buffer].address)
        self._copy(piece.down, self.down)
        return piece, buffer, self._moment(self.down)

    def _moment(self, stream: Stream) -> Moment:
        return self._events.record(stream.handle.value or 0)

    def _copy(self, copies: Sequence[Copy], stream: Stream) -> None:
        give, handle = driver.library().cuMemcpyAsync, stream.handle
        with self.context.current():  # once, as there may be thousands
            for write, read, nbytes in copies:
                give(write, read, nbytes, handle)

"""A collective that goes through the memory of the host."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from hvdlite.cuda.events import Moment
from hvdlite.errors import HvdError
from hvdlite.planes.base import DataPlane
from hvdlite.planes.staged.pieces import LayOut

_LOOK_S: Final = 0.2  # a signal that another thread gets does not end the main thread's wait for a lock


class Staged:
    """A collective of ``plane`` that begins after ``marks``; see `Launch`.

    `wait` runs it with ``carry_out``. `hold_back` blocks until the GPU has been given the last copy.
    """

    def __init__(
        self,
        plane: DataPlane,
        pieces: Iterable[LayOut],
        marks: Sequence[Moment],
        carry_out: Callable[[Staged], None],
    ) -> None:
        self.pieces = pieces
        self.marks = marks
        self.is_over = False
        self._plane = plane
        self._carry_out = carry_out
        self._end: Moment | None = None
        self._error: HvdError | None = None
        self._waiters: list[threading.Lock] = []

    @property
    def error(self) -> HvdError | None:
        return self._error if self.is_over else self._plane.error

    @property
    def is_done(self) -> bool:
        end = self._end
        return self.is_over or (end is not None and end.event.is_done)

    def hold_back(self, stream: int) -> None:
        """Lets ``stream`` wait for the end, once the GPU has been given the last copy; not at all after an abort.

        An exception of a signal handler in the main thread ends this call, and changes nothing else.
        """
        while not self._is_settled:
            waiter = threading.Lock()
            waiter.acquire()
            self._waiters.append(waiter)
            if not self._is_settled:  # else `wake` may have looked before
                waiter.acquire(timeout=_LOOK_S)
        if self._end is not None and not self.is_over:
            self._end.event.hold_back_callers(ctypes.c_void_p(stream))

    def wait(self) -> None:
        """Runs the collective, or waits until another thread has, and raises if it failed. Releases the GIL."""
        self._carry_out(self)
        if self._error is not None:
            raise self._error

    def given(self, end: Moment) -> None:
        """Records that the GPU has been given everything, and will have done it at ``end``."""
        self._end = end
        self.wake()

    def finished(self, error: HvdError | None) -> None:
        """Records that the collective has ended, and the error if its result must not be used."""
        self._error = error
        self.is_over = True
        self.pieces = self.marks = ()
        self.wake()

    def wake(self) -> None:
        """Lets those in `hold_back` look again. Any thread; never blocks."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.release()

    @property
    def _is_settled(self) -> bool:
        return self._end is not None or self.is_over or self._plane.error is not None

"""A collective that a GPU has been given."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence

from hvdlite.cuda.events import Moment
from hvdlite.errors import HvdError
from hvdlite.planes.base import DataPlane


class Launched:
    """A collective of ``plane`` that ends at ``moment`` and begins after ``marks``; see `Launch`.

    It has been under way since ``at``, or later. ``passed`` is called when the GPU is done with it.
    """

    def __init__(
        self, plane: DataPlane, moment: Moment, marks: Sequence[Moment], passed: Callable[[Launched], None]
    ) -> None:
        self.event = moment.event
        self.at = time.monotonic()
        self._moment = moment
        self._marks = marks
        self._plane = plane
        self._passed = passed
        self._is_over = False
        self._error: HvdError | None = None

    @property
    def error(self) -> HvdError | None:
        return self._error if self._is_over else self._plane.error

    @property
    def is_done(self) -> bool:
        if self._is_over:
            return True
        try:
            return self.event.is_done
        except HvdError as error:  # as in `wait`; nobody will learn more
            self._plane.abort(error)
            return True

    def hold_back(self, stream: int) -> None:
        if not self._is_over:
            self.event.hold_back_callers(ctypes.c_void_p(stream))

    def waits_for_caller(self) -> bool:
        """True until the caller's streams let it begin. For the watcher only."""
        if self._marks and all(mark.event.is_done for mark in self._marks):
            self._marks = ()
            self.at = time.monotonic()
        return bool(self._marks)

    def wait(self) -> None:
        """Waits until the collective is done on this rank, and raises if the plane has failed. Releases the GIL."""
        try:
            self.event.wait()  # after an abort too: before the kernel has ended, its memory must not be freed
        except HvdError as error:
            self._plane.abort(error)
        self._error = self._plane.error
        self._is_over = True
        self._passed(self)

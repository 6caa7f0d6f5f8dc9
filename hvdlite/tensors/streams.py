"""What front ends and devices that work in streams have in common: the work of a stream is done in order."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from hvdlite.errors import HvdError


class Streams(Protocol):
    """A front end's streams on one device, which the owner of memory there has as ``streams``."""

    def current(self) -> int:
        """Returns the stream to which this thread gives work now, as the device's library knows it."""

    def allocating(self) -> AbstractContextManager[Any]:
        """Returns a context in which this thread allocates memory that no work in any stream uses any more."""

    def use(self, result: Any) -> None:
        """Keeps the memory of ``result`` from other use until the current stream is done with it, also if it is freed.

        PyTorch calls that ``record_stream``.
        """


Synced = set[tuple[int, "Launch"]]
"""Streams, each with a launch for which it already waits. Valid within one call of hvdlite: later the program may have
ended a stream, and another stream may have its number."""


class Launch(Protocol):
    """A collective that a device has been given."""

    @property
    def is_done(self) -> bool:
        """True if the device has done it, or will not."""

    @property
    def error(self) -> HvdError | None:
        """Returns why its result must not be used."""

    def hold_back(self, stream: int) -> None:
        """Lets work that ``stream`` is given from now on begin only after the launch. Returns at once."""

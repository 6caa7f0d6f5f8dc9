"""What a device that works in streams has in common with front ends: work is in the order of its stream."""

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
"""Streams, each with a launch for which it waits already. For one call of hvdlite's only: later a program may have
ended a stream, and another one may have its number."""


class Launch(Protocol):
    """A collective that a device has been given."""

    @property
    def is_done(self) -> bool:
        """True if the device has done it, or will not."""

    @property
    def error(self) -> HvdError | None:
        """Returns why its result must not be used."""

    def hold_back(self, stream: int) -> None:
        """Lets what ``stream`` is given from now on begin only after it. Returns at once."""

"""One submitted tensor on its own rank: what was asked for, where its bytes are, and its handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvdlite.core.buffer import Buffer
from hvdlite.core.handle import Handle
from hvdlite.core.messages import Request

Allocate = Callable[[tuple[int, ...]], tuple[Any, Buffer]]
"""Makes an output of a shape that is known only after negotiation; returns the tensor and its buffer."""


class Entry:
    """A tensor in flight.

    ``source`` is read and ``target`` written; they are the same for a collective in place. ``target`` is None where
    the shape of the output is not known yet: ``allocate`` makes it then.
    """

    __slots__ = ("allocate", "handle", "request", "source", "target")

    def __init__(
        self, request: Request, source: Buffer, target: Buffer | None, allocate: Allocate | None, handle: Handle
    ) -> None:
        self.request = request
        self.source = source
        self.target = target
        self.allocate = allocate
        self.handle = handle

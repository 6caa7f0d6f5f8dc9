"""What the collectives need to know of a front end: its tensors, and how they may be made smaller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from hvdlite.tensors.buffer import Buffer

T = TypeVar("T")


class Adapter(Protocol[T]):
    """A front end's tensors."""

    @property
    def finish(self) -> Callable[[Any], T] | None:
        """What makes a tensor of what `empty` gave, when that is full; None if tensors themselves can be written."""

    def buffer(self, tensor: T, is_written: bool = False) -> Buffer:
        """The memory of ``tensor``, or of a contiguous copy unless it ``is_written``.

        Raises NotAnArray if it is no tensor, and ValueError if it has no memory, if its elements have no fixed size,
        and if it ``is_written`` and is read-only or not contiguous.
        """

    def of_number(self, value: Any) -> tuple[T, Callable[[T], Any]] | None:
        """A tensor without dimensions of a number, and how to make a number of such a tensor; None for what is none.

        Raises ValueError for a number that is not taken.
        """

    def empty(self, shape: Sequence[int], like: T) -> tuple[Any, int]:
        """A new contiguous tensor with the dtype of ``like``, or what becomes one, and where its memory begins.

        Called from any thread.
        """

    def counts(self, values: Sequence[int]) -> T:
        """A new one-dimensional int32 tensor of ``values``; called from any thread."""


class Compressor(Protocol):
    """Makes a tensor smaller for its journey; `decompress` gets back what `compress` returned."""

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and whatever `decompress` needs to know."""

    def decompress(self, tensor: Any, context: Any) -> Any:
        """The tensor as it was before."""

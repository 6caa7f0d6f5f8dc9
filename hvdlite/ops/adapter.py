"""The interface of a front end to the collectives: its tensors, and their compression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from hvdlite.tensors.buffer import Buffer

T = TypeVar("T")


class Adapter(Protocol[T]):
    """A front end's tensors."""

    @property
    def finish(self) -> Callable[[Any], T] | None:
        """Turns the filled result of `empty` into a tensor; None if `empty` returns tensors."""

    def buffer(self, tensor: T, is_written: bool = False) -> Buffer:
        """Returns the memory of ``tensor``, or of a contiguous copy unless it ``is_written``.

        The owner of memory of a device that works in streams has them as ``streams``
        (`hvdlite.tensors.streams.Streams`).

        Raises NotAnArray if it is no tensor, and ValueError if it has no memory, if its elements have no fixed size,
        and if it ``is_written`` and is read-only or not contiguous.
        """

    def of_number(self, value: Any) -> tuple[T, Callable[[T], Any]] | None:
        """Converts a number to a tensor without dimensions, and returns the way back too; None if it is no number.

        Raises ValueError for an unsupported number.
        """

    def empty(self, shape: Sequence[int], like: T) -> tuple[Any, int]:
        """Makes a contiguous tensor with the dtype of ``like``, or input for `finish`. Returns it and its address.

        Called from any thread.
        """

    def counts(self, values: Sequence[int]) -> T:
        """Makes a one-dimensional int32 tensor of ``values``. Called from any thread."""


class Compressor(Protocol):
    """Makes tensors smaller for transport. `decompress` gets what `compress` returned."""

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send, and a context for `decompress`."""

    def decompress(self, tensor: Any, context: Any) -> Any:
        """Restores the form that the tensor had before `compress`."""

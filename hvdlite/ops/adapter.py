"""What a front end implements for the collectives: access to its tensors, and their compression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from hvdlite.tensors.buffer import Buffer

T = TypeVar("T")


class Adapter(Protocol[T]):
    """Access to the tensors of one front end."""

    @property
    def finish(self) -> Callable[[Any], T] | None:
        """A function that turns the filled result of `empty` into a tensor; None if `empty` returns tensors."""

    def buffer(self, tensor: T, is_written: bool = False) -> Buffer:
        """Returns the memory of ``tensor``. Unless it ``is_written`` by the collective, a contiguous copy will do.

        For a device that works in streams, the owner has an attribute ``streams`` (`hvdlite.tensors.streams.Streams`).

        Raises NotAnArray if ``tensor`` is no tensor, and ValueError if it has no memory, if its elements have no fixed
        size, or if it ``is_written`` and is read-only or not contiguous.
        """

    def of_number(self, value: Any) -> tuple[T, Callable[[T], Any]] | None:
        """Converts a number to a tensor without dimensions; None if ``value`` is no number.

        Returns the tensor, and a function that converts such a tensor back to a number. Raises ValueError for an
        unsupported number.
        """

    def empty(self, shape: Sequence[int], like: T) -> tuple[Any, int]:
        """Makes a contiguous tensor with the dtype of ``like``, or input for `finish`. Returns it and its address.

        Any thread may call it.
        """

    def counts(self, values: Sequence[int]) -> T:
        """Makes a one-dimensional int32 tensor of ``values``. Any thread may call it."""


class Compressor(Protocol):
    """Makes tensors smaller for transport."""

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send, and a context to pass to `decompress`."""

    def decompress(self, tensor: Any, context: Any) -> Any:
        """Converts the result back to the form that the tensor had before `compress`."""

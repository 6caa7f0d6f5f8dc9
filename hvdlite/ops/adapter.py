"""What the collectives need to know of a front end: its tensors, and how they may be made smaller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from hvdlite.core.buffer import Buffer

T = TypeVar("T")


class Adapter(Protocol[T]):
    """A front end's tensors."""

    def buffer(self, tensor: T, is_written: bool = False) -> Buffer:
        """The memory of ``tensor``.

        Raises ValueError if it is no tensor, not contiguous and aligned, of an unknown dtype, or ``is_written`` and
        read-only.
        """

    def address(self, tensor: T) -> int:
        """Where the memory of a contiguous tensor begins; called from any thread."""

    def empty(self, shape: Sequence[int], like: T) -> T:
        """A new contiguous tensor with the dtype of ``like``; called from any thread."""

    def counts(self, values: Sequence[int]) -> T:
        """A new one-dimensional int32 tensor of ``values``; called from any thread."""


class Compressor(Protocol):
    """Makes a tensor smaller for its journey; `decompress` gets back what `compress` returned."""

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and whatever `decompress` needs to know."""

    def decompress(self, tensor: Any, context: Any) -> Any:
        """The tensor as it was before."""

"""Smaller tensors for the journey between ranks, at the price of precision.

Subclass `Compressor` for a compression of your own; the class itself is what is passed as ``compression``. The
compressed tensors of all ranks are summed, so a compressed form must be one that sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class Compressor(ABC):
    """Makes a tensor smaller before it is reduced, and what was reduced large again."""

    @staticmethod
    @abstractmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to reduce, ``tensor`` itself or a new one, and a context for `decompress`."""

    @staticmethod
    @abstractmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """The reduced ``tensor`` in its first form; ``context`` is what `compress` returned with it."""


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        return tensor


class CastingCompressor(Compressor):
    """Sends floats wider than ``dtype`` in ``dtype`` and gives them back in the dtype that they had.

    A front end says what its floats are and how they are converted.
    """

    dtype: ClassVar[Any]

    @staticmethod
    @abstractmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """``tensor`` in ``dtype``."""

    @staticmethod
    @abstractmethod
    def float_bytes(dtype: Any) -> int:
        """The bytes of a number of ``dtype``; 0 if that is no type of floats."""

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return cls.cast(tensor, cls.wire_dtype(tensor.dtype)), tensor.dtype

    @classmethod
    def wire_dtype(cls, dtype: Any) -> Any:
        """The dtype in which tensors of ``dtype`` travel."""
        return cls.dtype if cls.float_bytes(dtype) > cls.float_bytes(cls.dtype) else dtype

    @classmethod
    def decompress(cls, tensor: Any, context: Any) -> Any:
        return cls.cast(tensor, context)

"""Compression of tensors for transport between ranks, at the cost of precision.

To add a compression, subclass `Compressor` and pass the class itself as ``compression``. The compressed tensors of all
ranks are summed, so the sum of compressed forms must be the compressed form of the sum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class Compressor(ABC):
    """Makes a tensor smaller before it is reduced, and restores the result."""

    @staticmethod
    @abstractmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to reduce, ``tensor`` itself or a new one, and a context for `decompress`."""

    @staticmethod
    @abstractmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """Restores the original form of the reduced ``tensor``; ``context`` is from `compress`."""


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        return tensor


class CastingCompressor(Compressor):
    """Sends floats wider than ``dtype`` as ``dtype``, and restores their own dtype.

    A front end defines which of its dtypes are floats, and how they are converted.
    """

    dtype: ClassVar[Any]

    @staticmethod
    @abstractmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """Converts ``tensor`` to ``dtype``."""

    @staticmethod
    @abstractmethod
    def float_bytes(dtype: Any) -> int:
        """Returns the size of ``dtype`` in bytes; 0 if it is not a float type."""

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return cls.cast(tensor, cls.wire_dtype(tensor.dtype)), tensor.dtype

    @classmethod
    def wire_dtype(cls, dtype: Any) -> Any:
        """Returns the dtype in which tensors of ``dtype`` travel."""
        return cls.dtype if cls.float_bytes(dtype) > cls.float_bytes(cls.dtype) else dtype

    @classmethod
    def decompress(cls, tensor: Any, context: Any) -> Any:
        return cls.cast(tensor, context)

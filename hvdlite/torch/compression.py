"""Smaller tensors for the journey between ranks, at the price of precision.

Subclass `Compressor` for a compression of your own; the class itself is what is passed as ``compression``. The
compressed tensors of all ranks are summed, so a compressed form must be one that sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch


class Compressor(ABC):
    """Makes a tensor smaller before it is reduced, and what was reduced large again."""

    @staticmethod
    @abstractmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor to reduce, ``tensor`` itself or a new one, and a context for `decompress`."""

    @staticmethod
    @abstractmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """The reduced ``tensor`` in its first form; ``context`` is what `compress` returned with it."""


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor


class _HalvingCompressor(Compressor):
    """Sends floats wider than two bytes in ``dtype`` and gives them back in the dtype that they had."""

    dtype: ClassVar[torch.dtype]

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor.to(cls.wire_dtype(tensor.dtype)), tensor.dtype

    @classmethod
    def wire_dtype(cls, dtype: torch.dtype) -> torch.dtype:
        return cls.dtype if dtype.is_floating_point and dtype.itemsize > cls.dtype.itemsize else dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor.to(context)


class FP16Compressor(_HalvingCompressor):
    """Sends float32 and float64 as float16. Values beyond 65,504 become infinite."""

    dtype = torch.float16


class BF16Compressor(_HalvingCompressor):
    """Sends float32 and float64 as bfloat16: the range of float32 with 8 bits of precision."""

    dtype = torch.bfloat16


class Compression:
    """The compressions to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def wire_dtype(compression: Any, dtype: torch.dtype) -> torch.dtype | None:
    """The dtype in which ``compression`` sends tensors of ``dtype``. None if it is not one of ours: who knows."""
    if compression is NoneCompressor:
        return dtype
    return compression.wire_dtype(dtype) if compression in (FP16Compressor, BF16Compressor) else None

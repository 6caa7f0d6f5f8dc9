"""Compression of torch tensors, also as ``horovod.torch.compression``."""

from __future__ import annotations

from typing import Any

import torch

from hvdlite.training.compression import CastingCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor", "wire_dtype"]


class _HalvingCompressor(CastingCompressor):
    @staticmethod
    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype)

    @staticmethod
    def float_bytes(dtype: torch.dtype) -> int:
        return dtype.itemsize if dtype.is_floating_point else 0


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
    """Returns the dtype in which ``compression`` sends tensors of ``dtype``; None for a user's own compression."""
    if compression is NoneCompressor:
        return dtype
    if compression in (FP16Compressor, BF16Compressor):
        found: torch.dtype = compression.wire_dtype(dtype)
        return found
    return None

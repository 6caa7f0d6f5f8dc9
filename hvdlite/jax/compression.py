"""Compression of JAX arrays."""

from __future__ import annotations

from typing import Any

import jax

from hvdlite.training.compression import CastingCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _HalvingCompressor(CastingCompressor):
    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)

    @staticmethod
    def float_bytes(dtype: Any) -> int:
        return int(dtype.itemsize) if jax.numpy.issubdtype(dtype, jax.numpy.floating) else 0


class FP16Compressor(_HalvingCompressor):
    """Sends float32 and float64 as float16. Values beyond 65,504 become infinite."""

    dtype = jax.numpy.dtype("float16")


class BF16Compressor(_HalvingCompressor):
    """Sends float32 and float64 as bfloat16: the range of float32 with 8 bits of precision."""

    dtype = jax.numpy.dtype("bfloat16")


class Compression:
    """The compressions to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

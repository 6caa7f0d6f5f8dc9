"""Compression of tensors of TensorFlow, also as ``horovod.tensorflow.compression``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvdlite.training.compression import CastingCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _HalvingCompressor(CastingCompressor):
    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tf.cast(tensor, dtype)

    @staticmethod
    def float_bytes(dtype: Any) -> int:
        return int(dtype.size) if dtype.is_floating else 0


class FP16Compressor(_HalvingCompressor):
    """Sends float32 and float64 as float16. Values beyond 65,504 become infinite."""

    dtype = tf.float16


class BF16Compressor(_HalvingCompressor):
    """Sends float32 and float64 as bfloat16: the range of float32 with 8 bits of precision."""

    dtype = tf.bfloat16


class Compression:
    """The compressions to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

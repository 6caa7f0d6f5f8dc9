"""``horovod.tensorflow.compression``: the compressors, under the name that scripts know."""

# ruff: noqa: I001 - one statement for each module

from hvdlite.tensorflow.collectives.compression import (
    BF16Compressor as BF16Compressor,
    Compression as Compression,
    Compressor as Compressor,
    FP16Compressor as FP16Compressor,
    NoneCompressor as NoneCompressor,
)

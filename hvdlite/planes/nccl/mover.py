"""Moves pieces of a GPU's memory in the order of a stream, and multiplies their elements on the way."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hvdlite.cuda.kernel import Kernel
from hvdlite.cuda.streams import Stream
from hvdlite.planes.nccl.kernels import (
    COPIES,
    HEADER,
    NAME,
    PARAMETERS,
    PIECES,
    SCALED,
    THREADS,
    TILE,
    WARPS,
    Element,
    text,
)
from hvdlite.tensors.buffer import Spans, address_of
from hvdlite.tensors.dtypes import DType, ElementType

BLOCKS: Final = 32
"""The most blocks of a launch: about as many multiprocessors as NCCL uses, so that computations keep the rest."""


class Mover:
    """Moves in the order of ``stream``.

    All kernels are loaded at once, before the stream has any work. CUDA may delay loading until all running kernels
    have ended, and one of them may be a kernel of NCCL that waits for other ranks.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._kernels: dict[Element, Kernel] = {}
        with ExitStack() as undo:
            undo.callback(self.close)
            for element in (*COPIES.values(), *SCALED.values()):
                self._kernels[element] = Kernel(stream.context, text(element), NAME)
            undo.pop_all()

    def move(self, spans: Spans, dtype: ElementType | None = None, factor: float = 1.0) -> None:
        """Copies ``spans``, elements of ``dtype`` times ``factor``; each must be aligned to its size.

        Products equal those of `hvdlite.planes.arithmetic.scaled`. Spans that would not change are left alone.
        """
        if factor == 1 or not isinstance(dtype, DType) or dtype is DType.BOOL:
            spans = spans[(spans[:, 0] != spans[:, 1]) & (spans[:, 2] > 0)]
            element = _widest_copy(spans)
        else:
            spans = spans[spans[:, 2] > 0]
            element = SCALED[dtype]
        if not len(spans):
            return
        kernel = self._kernels[element]
        with self._stream.context.current():
            for first in range(0, len(spans), PIECES):
                parameters, blocks = launch_of(spans[first : first + PIECES], factor)
                kernel.launch(self._stream, blocks, THREADS, address_of(parameters))

    def close(self) -> None:
        """Frees the kernels, all of which the GPU must have run. May be called twice."""
        for kernel in self._kernels.values():
            kernel.close()


def launch_of(spans: Spans, factor: float) -> tuple[npt.NDArray[Any], int]:
    """Returns the parameters of the launch that moves ``spans``, at most `PIECES` and none empty, and its blocks."""
    tiles = -(-spans[:, 2].astype(np.int64) // TILE)
    begins = ((np.cumsum(tiles) - tiles) * TILE).astype(np.uint64)
    total = int(tiles.sum())
    blocks = min(BLOCKS, -(-total // WARPS))
    words = np.zeros(PARAMETERS // 8, np.uint64)
    words[0] = np.float64(factor).view(np.uint64)
    words[1] = -(-total // blocks) * TILE
    words[2] = len(spans)
    table = words[HEADER // 8 :].reshape(-1, 3)[: len(spans)]
    np.subtract(spans[:, 0], begins, out=table[:, 0])
    np.subtract(spans[:, 1], begins, out=table[:, 1])
    np.add(spans[:, 2], begins, out=table[:, 2])
    return words, blocks


def _widest_copy(spans: Spans) -> Element:
    """Returns the element as wide as all addresses and lengths let it be."""
    bits = int(np.bitwise_or.reduce(spans, axis=None)) | 8
    return COPIES[bits & -bits]

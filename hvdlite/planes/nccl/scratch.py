"""Memory of a GPU that one collective after the other uses, in the order of one stream.

It is kept, because CUDA returns memory that was freed in a stream to the system whenever a thread waits for the stream,
and to allocate it again takes longer than a small collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from hvdlite.cuda.driver import OutOfGpuMemory
from hvdlite.cuda.memory import DeviceMemory
from hvdlite.cuda.streams import Stream
from hvdlite.log import logger

KEPT_BYTES: Final = 128 << 20
_LEAST_BYTES: Final = 1 << 20  # of packs, which then are doubled, so that ranks agree a few times only
LINE: Final = 16
"""What addresses are multiples of, so that the kernels move 16 bytes at once."""


def aligned(nbytes: int) -> int:
    """Rounds up to a multiple of `LINE`."""
    return -(-nbytes // LINE) * LINE


class Scratch:
    """Memory for work in ``stream``, which keeps one collective from writing to it before the last one has read it.

    It grows to the most that was ever needed; `trim` bounds what stays.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._memory: DeviceMemory | None = None

    def take(self, sizes: Sequence[int]) -> list[int]:
        """Returns the addresses of parts of ``sizes``. What was taken before is free for the work that follows."""
        ends = list(accumulate(map(aligned, sizes), initial=0))
        if self._memory is None or self._memory.nbytes < ends[-1]:
            self.close()
            self._memory = DeviceMemory(self._stream, ends[-1])
        begin = self._memory.address
        return [begin + end for end in ends[:-1]]

    def trim(self) -> None:
        """Frees the memory, after the work that it was taken for, if it is too much to keep."""
        if self._memory is not None and self._memory.nbytes > KEPT_BYTES:
            self.close()

    def close(self) -> None:
        """Frees the memory after all that the stream has been given until now. May be called twice."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()


class Packs:
    """Memory in which all ranks pack tensors for one call of NCCL's, or none: a rank that has none cannot make it.

    It grows when more is packed than ever before, which is in the same collective on all ranks, and then they agree
    whether all of them have it. If one has not, nobody packs any more, and ``is_out`` is true: what is left of the
    memory is for the program.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._memory: DeviceMemory | None = None
        self.is_out = False

    @property
    def address(self) -> int:
        """Returns the address of the memory that `has_room` has found."""
        assert self._memory is not None
        return self._memory.address

    def has_room(self, nbytes: int, do_all: Callable[[bool], bool]) -> bool:
        """Returns whether ``nbytes``, the same on all ranks, can be packed.

        ``do_all`` returns whether all ranks called it with True.
        """
        if self.is_out or (self._memory is not None and nbytes <= self._memory.nbytes):
            return not self.is_out
        self.close()
        lack: OutOfGpuMemory | None = None
        try:
            doubled = max(_LEAST_BYTES, 1 << (nbytes - 1).bit_length())
            self._memory = DeviceMemory(self._stream, max(nbytes, min(doubled, KEPT_BYTES)))
        except OutOfGpuMemory as error:
            lack = error
        if lack is not None:
            logger.warning("tensors on GPUs are from now on reduced one by one, more slowly than in a pack. %s", lack)
        if not do_all(lack is None):
            self.is_out = True
            self.close()
        return not self.is_out

    def close(self) -> None:
        """Frees the memory after all that the stream has been given until now. May be called twice."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()

"""Memory of a GPU that one collective after the other uses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from hvdlite.cuda.memory import DeviceMemory
from hvdlite.cuda.streams import Stream

KEPT_BYTES: Final = 128 << 20
LINE: Final = 16
"""What addresses are multiples of, so that the kernels move 16 bytes at once."""


def aligned(nbytes: int) -> int:
    """Rounds up to a multiple of `LINE`."""
    return -(-nbytes // LINE) * LINE


class Scratch:
    """Memory for work in ``stream``, which keeps one collective from writing to it before the last one has read it.

    It stays, since CUDA gives memory that was freed in a stream back whenever the stream is waited for, and to get it
    again takes longer than a small collective. It grows to the most that was ever needed; `trim` bounds what stays.
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

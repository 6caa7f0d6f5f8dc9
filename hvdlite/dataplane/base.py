"""What every data plane promises.

A plane belongs to one group of ``size`` ranks and is one of them, ``rank``. Its collectives

- run one at a time, called by one thread (the executor), in the same order with matching arguments on every rank;
- block until this rank's part is done: outputs are written and inputs may be reused or freed;
- release the GIL while they wait or move bytes;
- leave bit-identical results on all ranks;
- end early, with the error given to `abort`, when `abort` is called from any other thread, and every later
  collective raises the same error at once;
- raise `HorovodInternalError` if no byte moves for ``progress_timeout`` seconds.

Memory is given as spans: rows of (address to read, address to write, bytes). A collective works on their virtual
concatenation, so that a batch of many tensors is one call and nothing is copied into a fusion buffer. Spans may be
empty. Reading and writing address of one row are equal or do not overlap; rows do not overlap each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from hvdlite.core.buffer import Spans
from hvdlite.core.dtypes import DType
from hvdlite.errors import HvdError


class DataPlane(ABC):
    """The collectives of one group. `close` frees what it holds and may be called twice."""

    name: str
    rank: int
    size: int

    @abstractmethod
    def allreduce(self, spans: Spans, dtype: DType, op: int, prescale: float, postscale: float) -> None:
        """Writes ``postscale * reduce(prescale * x_rank)`` over all ranks to every rank.

        ``op`` is Sum, Min, Max or Product (an average is a sum with a postscale). Spans have the same bytes row by
        row on every rank. float16 and bfloat16 accumulate in float32 and round once. Integers with a scale other
        than 1 are scaled in double and truncated toward zero; otherwise exact with wrap-around. bool is 0 or 1:
        Sum and Max are *or*, Product and Min are *and*.
        """

    @abstractmethod
    def allgather(self, streams: Sequence[Spans]) -> None:
        """Copies what each rank contributes to every rank.

        ``streams[r]`` are the spans of rank ``r``'s contribution: for ``r == self.rank`` rows read and write local
        memory (equal addresses: nothing to copy), for others the reading address is 0 and ignored. Row ``i`` of
        stream ``r`` has the same bytes on every rank; streams may differ in length and be empty. A broadcast is an
        allgather in which only the root's stream is not empty.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Returns after every rank has entered."""

    @abstractmethod
    def abort(self, error: HvdError) -> None:
        """Makes the running collective, on this rank, and all later ones raise ``error``. Any thread; never blocks."""

    @abstractmethod
    def close(self) -> None:
        """Frees memory, descriptors and sockets. Not while a collective runs."""

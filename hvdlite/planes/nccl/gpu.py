"""What a plane has on a GPU: a stream, a communicator for it, and what packs tensors in its order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from hvdlite.cuda.events import Events, Moment
from hvdlite.cuda.streams import Stream
from hvdlite.planes.nccl.communicator import Communicator
from hvdlite.planes.nccl.mover import Mover
from hvdlite.planes.nccl.reduction import Reduction
from hvdlite.planes.nccl.scratch import Packs, Scratch
from hvdlite.scope import Scope

_CLOSE_S: Final = 5.0


class Gpu:
    """The GPU that a plane uses, from its first collective on."""

    def __init__(self, events: Events, rank: int, size: int, unique: bytes, grace_s: float) -> None:
        self.context = events.context
        self._events = events
        with ExitStack() as undo:
            self.stream = Stream(self.context)
            undo.callback(self.stream.close)
            self.scratch = Scratch(self.stream)
            self.packs = Packs(self.stream)
            self.mover = Mover(self.stream)
            undo.callback(self.mover.close)
            self.communicator = Communicator(self.context, self.stream, rank, size, unique, grace_s)
            undo.pop_all()

    def moment(self) -> Moment:
        """Returns the moment at which the stream will have done all that it has been given until now."""
        return self._events.record(self.stream.handle.value or 0)

    @contextmanager
    def operation(self, chosen: Reduction) -> Iterator[int]:
        """A context with the number that NCCL has for the operation."""
        if chosen.scalar is None:
            yield chosen.operation
        else:
            with self.communicator.multiplying(chosen.scalar, chosen.dtype) as operation:
                yield operation

    def close(self, is_done: bool) -> None:
        """Frees everything, when the GPU is done or after some seconds.

        Unless it ``is_done`` with all that the stream was given, the kernels' code stays: CUDA would free it at once.
        """
        self.communicator.close(Scope.of(_CLOSE_S))
        if is_done:
            self.mover.close()
        self.scratch.close()
        self.packs.close()
        self.stream.close()

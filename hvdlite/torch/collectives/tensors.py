"""The collectives over CPU torch tensors.

Collectives work on memory, outside autograd: a result is a new tensor without history, and one in place keeps the
history its tensor had. Only the blocking forms that make a new tensor have gradients, see `autograd`.
"""

from __future__ import annotations

import torch

from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.ops import Collectives
from hvdlite.torch.collectives import derivatives
from hvdlite.torch.collectives.adapter import TensorAdapter
from hvdlite.torch.collectives.autograd import differentiable
from hvdlite.torch.collectives.compiled import with_graphs


@with_graphs
class TensorCollectives(Collectives[torch.Tensor]):
    """The collectives of `hvdlite.ops`, with gradients through them."""

    allreduce = differentiable(Collectives.allreduce, derivatives.of_allreduce)
    grouped_allreduce = differentiable(Collectives.grouped_allreduce, derivatives.of_allreduce)
    allgather = differentiable(Collectives.allgather, derivatives.of_allgather)
    grouped_allgather = differentiable(Collectives.grouped_allgather, derivatives.of_allgather)
    broadcast = differentiable(Collectives.broadcast, derivatives.of_broadcast)
    alltoall = differentiable(Collectives.alltoall, derivatives.of_alltoall)
    reducescatter = differentiable(Collectives.reducescatter, derivatives.of_reducescatter)
    grouped_reducescatter = differentiable(Collectives.grouped_reducescatter, derivatives.of_reducescatter)
    reduce = differentiable(Collectives.reduce, derivatives.of_reduce)
    gather = differentiable(Collectives.gather, derivatives.of_gather)
    scatter = differentiable(Collectives.scatter, derivatives.of_scatter)
    recv = differentiable(Collectives.recv, derivatives.of_recv)
    _send = differentiable(Collectives.send, derivatives.of_send)

    def send(  # type: ignore[override]
        self,
        tensor: torch.Tensor,
        rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> torch.Tensor:
        """Sends ``tensor`` to ``rank``, which calls `recv`; returns a zero when it has been received.

        Only these two ranks call anything. Without a name, the first send to a rank meets its first receive from here.
        A sender adds the zero to its loss, so that its backward comes to wait for the gradient from the receiver.
        """
        zero: torch.Tensor | None = self._send(tensor, rank, name, process_set)
        dtype = tensor.dtype if isinstance(tensor, torch.Tensor) else None  # or it is a number
        return torch.zeros((), dtype=dtype, device="cpu") if zero is None else zero


collectives = TensorCollectives(TensorAdapter())

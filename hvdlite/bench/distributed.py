"""torch.distributed as a system, over Gloo or NCCL, in the same processes; it finds its peers by MASTER_ADDR."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed as dist

from hvdlite.bench.measuring.systems import TensorType
from hvdlite.errors import HvdError
from hvdlite.launcher.agent.network.interfaces import describe_network
from hvdlite.settings import Settings

DTYPES = frozenset({"uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"})
"""The dtypes that Gloo reduces."""

_TIMEOUT = timedelta(seconds=60)
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before torch 2.13


class Distributed:
    """Collectives of the process group, over the back end ``label``, which matches tensors by order, not by name."""

    def __init__(self, label: str, size: int) -> None:
        self.label = label
        self._size = size
        self._gathered = torch.empty(0)

    def zeros(self, kind: TensorType, elements: int) -> torch.Tensor:
        made: torch.Tensor = kind.zeros(elements)
        return made

    def allreduce(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor

    def allreduce_all(self, tensors: Sequence[torch.Tensor], names: Sequence[str]) -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    def allgather(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        if self._gathered.numel() != self._size * tensor.numel() or self._gathered.dtype != tensor.dtype:
            self._gathered = tensor.new_empty(self._size * tensor.numel())
        _gather(self._gathered, tensor)
        return self._gathered

    def broadcast(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        dist.broadcast(tensor, 0)
        return tensor


@contextmanager
def open_distributed(label: str, rank: int, size: int) -> Iterator[Distributed]:
    """Connects torch.distributed to its peers over ``label``: "gloo" or "nccl". Raises HvdError if that fails."""
    if label == "gloo":
        _use_network_of_job()
    try:
        dist.init_process_group(label, rank=rank, world_size=size, timeout=_TIMEOUT)
    except (RuntimeError, ValueError) as error:  # ValueError: a variable is missing
        raise HvdError(
            f"torch.distributed could not connect over {label}: {error}. It needs MASTER_ADDR and MASTER_PORT; "
            "hvdrun sets both."
        ) from None
    try:
        yield Distributed(label, size)
    finally:
        dist.destroy_process_group()


def _use_network_of_job() -> None:
    """Makes Gloo use the job's interface. Its default is the interface of the host's name, often the loopback."""
    address = Settings.read().address
    for interface in describe_network()["interfaces"]:
        if any(each.partition("/")[0] == address for each in interface["addresses"]):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface["name"])

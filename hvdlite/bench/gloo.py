"""torch.distributed's Gloo as a system, in the same processes; torch finds its peers by its own variables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed as dist

from hvdlite.bench.systems import TensorType
from hvdlite.errors import HvdError
from hvdlite.launcher.agent.interfaces import describe_network
from hvdlite.settings import Settings

DTYPES = frozenset({"uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"})
"""The dtypes that Gloo reduces."""

_TIMEOUT = timedelta(seconds=60)
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before torch 2.13


class Gloo:
    """Collectives of the process group. Gloo matches tensors by order and ignores names."""

    label = "gloo"

    def __init__(self, size: int) -> None:
        self._size = size
        self._gathered = torch.empty(0)

    def zeros(self, kind: TensorType, elements: int) -> torch.Tensor:
        return torch.zeros(elements, dtype=kind.native)

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
def open_gloo(rank: int, size: int) -> Iterator[Gloo]:
    """Connects Gloo to its peers. Raises HvdError if that fails."""
    _use_network_of_job()
    try:
        dist.init_process_group("gloo", rank=rank, world_size=size, timeout=_TIMEOUT)
    except (RuntimeError, ValueError) as error:  # ValueError: a variable is missing
        raise HvdError(
            f"Gloo could not connect: {error}. It needs MASTER_ADDR and MASTER_PORT; hvdrun sets both."
        ) from None
    try:
        yield Gloo(size)
    finally:
        dist.destroy_process_group()


def _use_network_of_job() -> None:
    """Names the job's interface to Gloo, which takes that of the host's name otherwise: on many hosts the loopback."""
    address = Settings.read().address
    for interface in describe_network()["interfaces"]:
        if any(each.partition("/")[0] == address for each in interface["addresses"]):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface["name"])

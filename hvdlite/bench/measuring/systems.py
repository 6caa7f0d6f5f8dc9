"""The systems that can be measured, behind a few common operations, and the tensors that they take.

Opening them starts the session of hvdlite, which a study also uses to agree on times and results.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import hvdlite as hvd
from hvdlite.bench.measuring.timing import Candidate
from hvdlite.tensors.dtypes import DType

Tensor = Any  # a numpy array, or a torch tensor when torch takes part


@dataclass(frozen=True)
class TensorType:
    """The library and dtype of a study's tensors, and the kind of device that they are on."""

    dtype: str
    uses_torch: bool
    device: str = "cpu"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DType[self.dtype.upper()].itemsize

    @property
    def native(self) -> Any:
        """The dtype of the tensors' library."""
        return getattr(importlib.import_module("torch"), self.dtype) if self.uses_torch else self.dtype

    def zeros(self, elements: int) -> Tensor:
        """A new tensor of one dimension."""
        if not self.uses_torch:
            return np.zeros(elements, dtype=self.native)
        return importlib.import_module("torch").zeros(elements, dtype=self.native, device=self.device)


class System(Protocol):
    """Blocking collectives over one-dimensional tensors. Tensors of the ranks with one ``name`` belong together."""

    label: str

    def zeros(self, kind: TensorType, elements: int) -> Tensor:
        """A new tensor of one dimension, in the memory with which the system is measured."""

    def allreduce(self, tensor: Tensor, name: str) -> Tensor:
        """Sums ``tensor`` over all ranks, in place."""

    def allreduce_all(self, tensors: Sequence[Tensor], names: Sequence[str]) -> None:
        """Sums all tensors in place: submits every one of them, then waits for all."""

    def allgather(self, tensor: Tensor, name: str) -> Tensor:
        """The tensors of all ranks, which have equal sizes, one after the other."""

    def broadcast(self, tensor: Tensor, name: str) -> Tensor:
        """Overwrites ``tensor`` with rank 0's."""


class Hvdlite:
    """hvdlite itself, through the front end for these tensors."""

    label = "hvdlite"

    def __init__(self, uses_torch: bool) -> None:
        self._hvd: Any = importlib.import_module("hvdlite.torch") if uses_torch else hvd

    def zeros(self, kind: TensorType, elements: int) -> Tensor:
        return kind.zeros(elements)

    def allreduce(self, tensor: Tensor, name: str) -> Tensor:
        return self._hvd.allreduce_(tensor, op=hvd.Sum, name=name)

    def allreduce_all(self, tensors: Sequence[Tensor], names: Sequence[str]) -> None:
        start = self._hvd.allreduce_async_
        handles = [start(tensor, op=hvd.Sum, name=name) for tensor, name in zip(tensors, names, strict=True)]
        for handle in handles:
            hvd.synchronize(handle)

    def allgather(self, tensor: Tensor, name: str) -> Tensor:
        return self._hvd.allgather(tensor, name=name)

    def broadcast(self, tensor: Tensor, name: str) -> Tensor:
        return self._hvd.broadcast_(tensor, root_rank=0, name=name)


class Registered(Hvdlite):
    """hvdlite with tensors in memory that the ranks of a host share."""

    label = "registered"

    def zeros(self, kind: TensorType, elements: int) -> Tensor:
        tensor = self._hvd.shared_empty(elements, dtype=kind.native)
        tensor[:] = 0
        return tensor


def candidate_for(device: str) -> type[Candidate]:
    """The class of candidates whose work is timed by the clock of ``device``: "cpu" or "cuda"."""
    if device == "cpu":
        return Candidate
    from hvdlite.bench.measuring.on_gpu import OnGpu  # it imports torch

    return OnGpu


OWN = (Hvdlite.label, Registered.label)
"""The labels of hvdlite itself."""

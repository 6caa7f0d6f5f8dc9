"""Reductions of sparse tensors: every rank gathers the rows of all others and adds up those with the same index.

One all-gather moves a tensor. An element's indices travel in front of its values, in one row, as the bits of numbers of
the values' type; so ranks whose types or shapes differ are told, as with any all-gather, and a row is never torn.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from hvdlite.core.dtypes import OP_NAMES, Average, Sum
from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.ops import synchronize
from hvdlite.torch.tensors import collectives


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Starts the reduction of a sparse COO tensor, of which ranks may hold different elements, or none.

    Returns a function that waits for it and gives the coalesced result, as `synchronize` does for other collectives.
    Raises ValueError for a tensor that is not sparse, and for operations other than Average and Sum.
    """
    if not (isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo):
        raise ValueError("sparse_allreduce_async takes a sparse COO tensor; use allreduce_async for a dense one")
    if op not in (Average, Sum):
        raise ValueError(f"op {OP_NAMES.get(op, op)} of sparse tensors is not supported; use hvd.Average or hvd.Sum")
    shape, sparse_dim = tensor.shape, tensor.sparse_dim()
    handle = collectives.allgather_async(_pack(tensor.detach().coalesce()), name, process_set)

    def wait() -> torch.Tensor:
        total = _unpack(synchronize(handle), shape, sparse_dim).coalesce()
        return _divided(total, process_set.size() or 1) if op == Average else total

    return wait


def _pack(tensor: torch.Tensor) -> torch.Tensor:
    values = tensor.values()
    indices = tensor.indices().t().clone(memory_format=torch.contiguous_format).view(values.dtype)
    return torch.cat([indices, values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)], dim=1)


def _unpack(rows: torch.Tensor, shape: torch.Size, sparse_dim: int) -> torch.Tensor:
    width = sparse_dim * torch.int64.itemsize // rows.dtype.itemsize
    indices = rows[:, :width].clone(memory_format=torch.contiguous_format).view(torch.int64).t()
    values = rows[:, width:].reshape(-1, *shape[sparse_dim:])
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)  # an index may be another rank's


def _divided(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """``tensor / count`` in its dtype; whole numbers are truncated toward zero."""
    values = tensor.values()
    quotient = values / count if values.is_floating_point() else torch.div(values, count, rounding_mode="trunc")
    return torch.sparse_coo_tensor(tensor.indices(), quotient, tensor.shape, is_coalesced=True, check_invariants=False)

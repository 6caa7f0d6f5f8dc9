"""Reductions of sparse tensors: every rank gathers the rows of all others and adds up rows with the same index.

One all-gather moves a tensor. An element's indices travel in front of its values, in one row, as the bits of numbers of
the values' type, and a row is never split. The first row of a rank has the extents of the indexed dimensions in place
of indices. If extents differ, all ranks raise an error, as the all-gather does for other types or other dimensions
after these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch

from hvdlite.errors import Mismatch
from hvdlite.ops import (
    OP_NAMES,
    Average,
    Entry,
    Group,
    ProcessSet,
    Sum,
    global_process_set,
    group_of,
    synchronize,
)
from hvdlite.torch.collectives.tensors import collectives


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Starts the reduction of a sparse COO tensor. Ranks may have different elements, or none.

    Returns a function that waits for it and returns the coalesced result, as `synchronize` does for other collectives.
    Raises ValueError for a tensor that is not sparse, and for operations other than Average and Sum.
    """
    return start_sparse_allreduce(group_of(process_set), tensor, name, op)[1]


def start_sparse_allreduce(
    group: Group, tensor: torch.Tensor, name: str | None, op: int, is_blank: bool = False
) -> tuple[Entry[torch.Tensor], Callable[[], torch.Tensor]]:
    """As `sparse_allreduce_async`. Also returns the entry of the gather, which is blank if ``is_blank``."""
    if not (isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo):
        raise ValueError("sparse_allreduce_async takes a sparse COO tensor; use allreduce_async for a dense one")
    if op not in (Average, Sum):
        raise ValueError(f"op {OP_NAMES.get(op, op)} of sparse tensors is not supported; use hvd.Average or hvd.Sum")
    shape, sparse_dim = tensor.shape, tensor.sparse_dim()
    packed = _pack(tensor.detach().coalesce())
    handle = cast(Entry[torch.Tensor], collectives.draft("allgather", group, packed, name=name))
    handle.is_blank = is_blank
    group.submit(handle)

    def wait() -> torch.Tensor:
        indices, values = _unpack(synchronize(handle), shape, sparse_dim)
        firsts = [sum(handle.rows[:index]) for index in range(group.size)]
        _compare(handle.name, dict(zip(group.ranks, indices[firsts].tolist(), strict=True)))
        elements = torch.ones(len(indices), dtype=torch.bool, device=indices.device)
        elements[firsts] = False
        if op == Average:
            return _average(indices[elements], values[elements], shape, group.size)
        return _sparse(indices[elements], values[elements], shape).coalesce()

    return handle, wait


def _pack(tensor: torch.Tensor) -> torch.Tensor:
    values = tensor.values()
    extents = torch.tensor(tensor.shape[: tensor.sparse_dim()], device=values.device).unsqueeze(0)
    indices = torch.cat([extents, tensor.indices().t()]).view(values.dtype)
    columns = values.reshape(len(values), math.prod(values.shape[1:]))
    return torch.cat([indices, torch.cat([columns.new_zeros(1, columns.shape[1]), columns])], dim=1)


def _unpack(rows: torch.Tensor, shape: torch.Size, sparse_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = sparse_dim * torch.int64.itemsize // rows.dtype.itemsize
    indices = rows[:, :width].clone(memory_format=torch.contiguous_format).view(torch.int64)
    return indices, rows[:, width:].reshape(-1, *shape[sparse_dim:])


def _compare(name: str, extents_by_rank: dict[int, list[int]]) -> None:
    if len(set(map(tuple, extents_by_rank.values()))) > 1:
        listed = "; ".join(f"rank {rank} has {extents}" for rank, extents in extents_by_rank.items())
        raise Mismatch(
            f"ranks disagree about the shape of sparse tensor {name!r}: {listed}. Submit the same on every rank."
        )


def _sparse(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices.t(), values, shape, check_invariants=True)  # an index may be another rank's


def _average(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size, count: int) -> torch.Tensor:
    """Adds up and divides by ``count`` in the dtype of ``values``, integers truncated toward zero.

    Integers are divided first, and their quotients and remainders added, because a sum might wrap around.
    """
    if values.is_floating_point() or values.is_complex():
        total = _sparse(indices, values, shape).coalesce()
        averages = total.values() / count
    else:
        numbers = values.long()
        quotients = numbers.div(count, rounding_mode="trunc")
        pairs = torch.stack([quotients, numbers - quotients * count], dim=-1)
        total = _sparse(indices, pairs, torch.Size((*shape, 2))).coalesce()
        quotients, rests = total.values().unbind(-1)
        below = quotients + rests.div(count, rounding_mode="floor")
        averages = (below + ((below < 0) & (rests % count != 0))).to(values.dtype)
    return torch.sparse_coo_tensor(total.indices(), averages, shape, is_coalesced=True, check_invariants=False)

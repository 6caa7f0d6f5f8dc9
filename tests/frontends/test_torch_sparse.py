"""Reductions of sparse tensors, and optimizers whose gradients are sparse on some ranks only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import hvdlite.torch as hvd
from tests.frontends.scenarios import Report, Scenarios, assert_close, seeded

DTYPES = (torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)
scenario = Scenarios(ranks=[1, 3])


def sparse(rank: int, shape: tuple[int, ...], sparse_dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """``rank`` elements, some of them with the same indices, whose values are small whole numbers."""
    generator = seeded(rank)
    indices = torch.stack([torch.randint(0, size, (rank,), generator=generator) for size in shape[:sparse_dim]])
    values = torch.randint(1, 5, (rank, *shape[sparse_dim:]), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


def total(shape: tuple[int, ...], sparse_dim: int, dtype: torch.dtype) -> torch.Tensor:
    tensors = [sparse(rank, shape, sparse_dim).to_dense().double() for rank in range(hvd.size())]
    return torch.stack(tensors).sum(dim=0).to(dtype)


@scenario
def every_dtype_and_number_of_sparse_dimensions() -> None:
    for dtype in DTYPES:
        for sparse_dim in (1, 2, 3):
            tensor = sparse(hvd.rank(), (4, 3, 2), sparse_dim, dtype)
            wait = hvd.sparse_allreduce_async(tensor, name=f"sparse {sparse_dim}", op=hvd.Sum)
            result = wait()
            assert result.is_coalesced()
            assert result.layout is torch.sparse_coo
            assert_close(result.to_dense(), total((4, 3, 2), sparse_dim, dtype))


@scenario
def the_average_divides_by_all_ranks_and_truncates_whole_numbers() -> None:
    for dtype in (torch.float64, torch.int64):
        result = hvd.sparse_allreduce_async(sparse(hvd.rank(), (5, 2), 1, dtype), "average", hvd.Average)()
        assert_close(result.to_dense(), (total((5, 2), 1, torch.float64) / hvd.size()).to(dtype))
    for dtype in (torch.uint8, torch.int8, torch.int32, torch.int64):
        limits = torch.iinfo(dtype)
        for values in (
            [limits.max, limits.min, 2],
            [limits.max, limits.max, limits.max - 1],
            [limits.min, limits.min, 3],
        ):
            mine = torch.tensor([values[hvd.rank()], limits.max], dtype=dtype)
            row = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), mine, (3,), check_invariants=True)
            result = hvd.sparse_allreduce_async(row, "extremes", hvd.Average)()
            exact = sum(values[: hvd.size()])
            average = abs(exact) // hvd.size() * (1 if exact >= 0 else -1)
            assert result.to_dense().tolist() == [average, 0, limits.max]


@scenario
def without_elements_anywhere() -> None:
    empty = torch.sparse_coo_tensor(torch.empty(2, 0, dtype=torch.int64), torch.empty(0), (3, 3), check_invariants=True)
    result = hvd.sparse_allreduce_async(empty, "empty", hvd.Average)()
    assert result._nnz() == 0
    assert result.shape == (3, 3)


@scenario
def what_cannot_be_reduced() -> None:
    with pytest.raises(ValueError, match="takes a sparse COO tensor"):
        hvd.sparse_allreduce_async(torch.ones(2))
    with pytest.raises(ValueError, match="op Max of sparse tensors is not supported"):
        hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), op=hvd.Max)
    if hvd.size() > 1:
        for different in (torch.eye(2 + hvd.rank()).to_sparse(1), torch.eye(2).to(DTYPES[-1 - hvd.rank()]).to_sparse()):
            with pytest.raises(hvd.Mismatch, match="differing"):
                hvd.sparse_allreduce_async(different, "differing")()


def words() -> tuple[nn.Embedding, Callable[..., None]]:
    """An embedding whose gradient is sparse, and one step of training on some words."""
    embedding = nn.Embedding(4, 2, sparse=True)
    nn.init.ones_(embedding.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(embedding.parameters(), lr=1.0), embedding.named_parameters(), op=hvd.Sum
    )

    def step(*indices: int) -> None:
        optimizer.zero_grad()
        if indices:
            embedding(torch.tensor(indices)).sum().backward()
        optimizer.step()

    return embedding, step


@scenario
def a_rank_without_a_gradient_takes_part_once_it_knows_that_it_is_sparse() -> None:
    embedding, step = words()
    step(0, 0, 1)
    assert embedding.weight[:, 0].tolist() == [1 - 2 * hvd.size(), 1 - hvd.size(), 1, 1]
    step(*[2] * (hvd.rank() > 0))
    assert embedding.weight[2, 0].item() == 2 - hvd.size()
    assert embedding.weight.grad is None or embedding.weight.grad.layout is torch.sparse_coo


@scenario
def a_rank_that_never_saw_the_gradient_is_told_on_every_rank() -> None:
    if hvd.size() > 1:
        embedding, step = words()
        with pytest.raises(hvd.Mismatch, match="gradient.weight.*sparse_as_dense=True"):
            step(*[1] * (hvd.rank() > 0))
        assert embedding.weight.unique().tolist() == [1.0]


@scenario
def an_optimizer_for_sparse_gradients() -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    hvd.broadcast_parameters(embedding.state_dict(), 0)
    for options in ({}, {"groups": 1}):
        inner = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(inner, embedding.named_parameters(), **options)
        embedding(torch.tensor([hvd.rank() % 4])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        everywhere = hvd.allgather(embedding.weight.detach().unsqueeze(0))
        assert all(torch.equal(each, everywhere[0]) for each in everywhere)


@scenario
def rows_whose_gradient_is_zero_stay() -> None:
    """SparseAdam moves them by its momentum. So ranks that share the words take the step of one with all of them."""
    words = {0: torch.tensor([1, 2, 5]), 1: torch.tensor([2, 3]), 2: torch.tensor([5])}
    for options in (
        {"sparse_as_dense": True},
        {"groups": 1},
        {"sparse_as_dense": True, "compression": hvd.Compression.fp16},
        {"sparse_as_dense": True, "gradients_in_shared_memory": False},
        {"sparse_as_dense": True, "gradient_predivide_factor": 2.0},
        {},
    ):
        ours, alone = (nn.Embedding(7, 2, sparse=True) for _ in range(2))
        for embedding in (ours, alone):
            nn.init.ones_(embedding.weight)
        inner = torch.optim.SparseAdam(ours.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(inner, ours.named_parameters(), **options)
        single = torch.optim.SparseAdam(alone.parameters(), lr=0.1)
        for factor in (1.0, 0.0, -0.0, 0.5):  # a factor of zero gives gradients that are exactly zero
            optimizer.zero_grad()
            single.zero_grad()
            (ours(words[hvd.rank()]).sum() * factor).backward()
            (sum(alone(words[rank]).sum() for rank in range(hvd.size())) * factor / hvd.size()).backward()
            optimizer.step()
            single.step()
            used = sorted({index for rank in range(hvd.size()) for index in words[rank].tolist()})
            assert ours.weight.grad.coalesce().indices()[0].tolist() == used, (options, factor)
            assert_close(ours.weight.detach(), alone.weight.detach(), 1e-2 if "compression" in options else 1e-5)


@scenario
def rows_cancel_out_and_ranks_join_without_adding_rows() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)
    bare = torch.optim.SGD(embedding.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(bare, embedding.named_parameters(), sparse_as_dense=True)
    for step in range(2):
        if step and hvd.rank() == hvd.size() - 1 and hvd.size() > 1:
            break
        optimizer.zero_grad()
        (embedding(torch.tensor([1, 3])).sum() * (1.0 - 2.0 * (hvd.rank() % 2))).backward()
        optimizer.step()
        assert embedding.weight.grad.coalesce().indices()[0].tolist() == [1, 3]
    hvd.join()


@scenario
def a_sparse_gradient_that_no_rank_has() -> None:
    for options in ({}, {"sparse_as_dense": True}):
        embedding = nn.Embedding(5, 2, sparse=True)
        bare = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(bare, embedding.named_parameters(), **options)
        for has_gradient in (True, False, True):
            optimizer.zero_grad()
            if has_gradient:
                embedding(torch.tensor([1])).sum().backward()
            optimizer.step()
            assert (embedding.weight.grad is not None) == has_gradient


def test_torch_sparse(report: Report, name: str) -> None:
    assert report[name] == ""

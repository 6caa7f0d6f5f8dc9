"""Gradients through every collective, at 1 to 3 ranks, against what each rank can compute for all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import hvdlite.torch as hvd
from hvdlite.ops.table import COLLECTIVES
from hvdlite.torch.collectives.derivatives import RULES
from tests.frontends.scenarios import Report, Scenarios, assert_close, seeded

scenario = Scenarios(ranks=[1, 2, 3])


def data(rank: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(1 + rank), dtype=torch.float64)


def own_input(*shape: int) -> torch.Tensor:
    return data(hvd.rank(), *shape).requires_grad_()


def over_ranks(weights: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """Sums the weights that all ranks give to their results."""
    return torch.stack([weights(rank) for rank in range(hvd.size())]).sum(dim=0)


def backward(result: torch.Tensor, seed: int = 100) -> None:
    """Runs backward of a loss whose gradient with respect to ``result`` is ``weights_of(rank)``."""
    (result * data(seed + hvd.rank(), *result.shape)).sum().backward()


@scenario
def allreduce_reduces_the_gradients_alike() -> None:
    total = over_ranks(lambda rank: data(100 + rank, 2, 3))
    for arguments, scale in (
        ({}, 1 / hvd.size()),
        ({"op": hvd.Sum}, 1.0),
        ({"average": False}, 1.0),
        ({"op": hvd.Sum, "prescale_factor": 0.5, "postscale_factor": 3.0}, 1.5),
    ):
        tensor = own_input(2, 3)
        result = hvd.allreduce(tensor, **arguments)
        assert torch.equal(result, hvd.allreduce(tensor.detach(), **arguments))
        backward(result)
        assert_close(tensor.grad, total * scale)


@scenario
def grouped_allreduce_reduces_the_gradients_alike() -> None:
    tensors = [own_input(2), own_input(3, 2), own_input(1)]
    results = hvd.grouped_allreduce(tensors, op=hvd.Sum, postscale_factor=2.0, name="group")
    (results[0] * data(100 + hvd.rank(), 2)).sum().backward(retain_graph=True)
    assert_close(tensors[0].grad, 2 * over_ranks(lambda rank: data(100 + rank, 2)))
    assert tensors[1].grad.abs().sum().item() == 0.0  # its result did not reach the loss
    (results[1] * data(100 + hvd.rank(), 3, 2)).sum().backward()
    assert_close(tensors[1].grad, 2 * over_ranks(lambda rank: data(100 + rank, 3, 2)))


@scenario
def compression_is_derived_through() -> None:
    tensor = torch.tensor([1.0, 2.0], requires_grad=True)
    for result in (
        hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16),
        *hvd.grouped_allreduce([tensor], op=hvd.Sum, compression=hvd.Compression.bf16),
        hvd.reducescatter(tensor.repeat(hvd.size()), compression=hvd.Compression.fp16),
    ):
        assert result.dtype == torch.float32
        tensor.grad = None
        (2 * result).sum().backward()
        assert tensor.grad.dtype == torch.float32
        assert tensor.grad.tolist() == [2.0 * hvd.size()] * 2


@scenario
def minimum_maximum_and_product_have_no_gradient() -> None:
    for op, name in ((hvd.Min, "Min"), (hvd.Max, "Max"), (hvd.Product, "Product")):
        for result in (hvd.allreduce(own_input(2), op=op), hvd.grouped_allreduce([own_input(2)], op=op)[0]):
            with pytest.raises(RuntimeError, match=f"no gradient through op {name}"):
                result.sum().backward()
    with torch.no_grad():
        assert not hvd.allreduce(own_input(2), op=hvd.Max).requires_grad


@scenario
def allgather_averages_the_gradients_and_takes_the_own_rows() -> None:
    rows = [2 * rank for rank in range(hvd.size())]  # rank 0 has none
    own = slice(sum(rows[: hvd.rank()]), sum(rows[: hvd.rank() + 1]))
    tensor, second = own_input(rows[hvd.rank()], 3), own_input(1)
    backward(hvd.allgather(tensor))
    expected = over_ranks(lambda rank: data(100 + rank, sum(rows), 3))[own] / hvd.size()
    assert_close(tensor.grad, expected)
    tensor.grad = None
    results = hvd.grouped_allgather([tensor, second], name="gathered")
    backward(results[0])
    assert_close(tensor.grad, expected)


@scenario
def broadcast_averages_the_gradients_on_the_root() -> None:
    for root in range(hvd.size()):
        tensor = own_input(2, 2)
        backward(hvd.broadcast(tensor, root))
        average = over_ranks(lambda rank: data(100 + rank, 2, 2)) / hvd.size()
        assert_close(tensor.grad, average if hvd.rank() == root else torch.zeros(2, 2, dtype=torch.float64))


@scenario
def alltoall_returns_the_gradients_to_where_the_rows_came_from() -> None:
    splits = [(hvd.rank() + rank) % 3 for rank in range(hvd.size())]
    tensor = own_input(sum(splits) + 1, 2)  # the last row stays
    output, received = hvd.alltoall(tensor, splits=splits)
    assert received.tolist() == splits  # the matrix of all splits is symmetric
    (output * (1 + hvd.rank())).sum().backward()
    expected = torch.cat(
        [torch.full((count, 2), 1.0 + rank) for rank, count in enumerate(splits)] + [torch.zeros(1, 2)]
    )
    assert_close(tensor.grad, expected.double())

    even = own_input(2 * hvd.size())
    (hvd.alltoall(even) * (1 + hvd.rank())).sum().backward()
    assert even.grad.tolist() == [1.0 + rank for rank in range(hvd.size()) for _ in range(2)]


@scenario
def reducescatter_gathers_the_gradients() -> None:
    rows = 2 * hvd.size() + 1  # rank 0 gets one more
    for arguments, scale in (({}, 1.0), ({"op": hvd.Sum, "prescale_factor": 3.0}, 3.0 * hvd.size())):
        tensor, second = own_input(rows, 2), own_input(rows)
        result = hvd.reducescatter(tensor, **arguments)
        (result * (1 + hvd.rank())).sum().backward()
        counts = [3, *[2] * (hvd.size() - 1)]
        expected = torch.cat([torch.full((count, 2), scale * (1 + rank)) for rank, count in enumerate(counts)]).double()
        assert_close(tensor.grad, expected)
        tensor.grad = None
        sum(
            (1 + hvd.rank()) * part.sum() for part in hvd.grouped_reducescatter([tensor, second], **arguments)
        ).backward()
        assert_close(tensor.grad, expected)
        assert_close(second.grad, expected[:, 0])


@scenario
def reduce_hands_out_the_gradient_of_the_root() -> None:
    root = hvd.size() - 1
    for arguments, scale in (({}, 1 / hvd.size()), ({"op": hvd.Sum, "postscale_factor": 3.0}, 3.0)):
        tensor = own_input(4)
        backward(hvd.reduce(tensor, root, **arguments))
        assert_close(tensor.grad, scale * data(100 + root, 4))


@scenario
def gather_and_scatter_are_each_others_gradients() -> None:
    root, rows = hvd.size() - 1, hvd.rank() + 1
    tensor = own_input(rows, 2)
    backward(hvd.gather(tensor, root))
    total = sum(range(hvd.size() + 1))
    start = sum(range(rows))
    assert_close(tensor.grad, data(100 + root, total, 2)[start : start + rows])

    tensor = own_input(total + 1, 2)  # the last row stays
    splits = list(range(1, hvd.size() + 1))
    part = hvd.scatter(tensor, root, splits=splits)
    backward(part)
    parts = [data(100 + rank, splits[rank], 2) for rank in range(hvd.size())] + [torch.zeros(1, 2).double()]
    assert_close(tensor.grad, torch.cat(parts) if hvd.rank() == root else torch.zeros_like(tensor))


@scenario
def a_message_sends_its_gradient_back() -> None:
    if hvd.size() == 1:
        return
    for name in (None, "hidden", "hidden"):
        tensor = own_input(3)
        if hvd.rank() == 0:
            hvd.send(tensor, 1, name).backward()
            assert_close(tensor.grad, 2 * data(0, 3))
        elif hvd.rank() == 1:
            hvd.recv(tensor, 0, name).square().sum().backward()
            assert tensor.grad is None
    if hvd.rank() < 2:
        plain = torch.ones(2)
        result = hvd.send(plain, 1) if hvd.rank() == 0 else hvd.recv(plain, 0)
        assert not result.requires_grad
        assert (result == hvd.rank()).all()


@scenario
def a_graph_of_many_collectives() -> None:
    """Chained, branching and reused under one name, with gradients that are not contiguous."""
    weight = own_input(2, 2)
    hidden = hvd.allreduce(weight, op=hvd.Sum, name="shared").t()
    hidden = hvd.allreduce(hidden.contiguous(), op=hvd.Sum, name="shared") + hvd.broadcast(weight, 0)
    hidden.sum().backward()
    assert_close(weight.grad, torch.full((2, 2), hvd.size() ** 2 + (1.0 if hvd.rank() == 0 else 0.0)).double())


@scenario
def in_a_process_set() -> None:
    if hvd.size() < 3:
        return
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        tensor = own_input(2)
        hvd.allreduce(tensor, process_set=pair).sum().backward()
        assert tensor.grad.tolist() == [1.0] * 2
        tensor.grad = None
        backward(hvd.allgather(tensor, process_set=pair))
        own = slice(0, 2) if hvd.rank() == 0 else slice(2, 4)
        assert_close(tensor.grad, (data(100, 4) + data(102, 4))[own] / 2)
        tensor.grad = None
        hvd.reducescatter(tensor, op=hvd.Sum, process_set=pair).sum().backward()
        assert tensor.grad.tolist() == [2.0] * 2
        tensor.grad = None
        backward(hvd.reduce(tensor, 2, op=hvd.Sum, process_set=pair))
        assert_close(tensor.grad, data(102, 2))
    hvd.remove_process_set(pair)


@scenario
def keywords_and_integers_are_as_without_gradients() -> None:
    tensor = own_input(2)
    hvd.allreduce(tensor=tensor, op=hvd.Sum).sum().backward()
    assert tensor.grad.tolist() == [hvd.size()] * 2
    assert not hvd.allreduce(torch.ones(2, dtype=torch.int64), op=hvd.Sum).requires_grad
    assert hvd.allreduce(own_input(2, 3).t()).shape == (3, 2)
    with pytest.raises(ValueError, match="expected a torch tensor, got list"):
        hvd.grouped_allreduce([[1.0]])


def test_torch_autograd(report: Report, name: str) -> None:
    assert report[name] == ""


def test_every_public_collective_has_a_gradient() -> None:
    assert [row.name for row in COLLECTIVES if row.is_public and row.name not in RULES] == []

"""Accepted tensors, and their results, beyond the table of odd tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import hvdlite.torch as hvd
from tests.frontends.odd import Wrapper, bytes_of, complex_values, distributed, resized, values
from tests.frontends.scenarios import Report, Scenarios

scenario = Scenarios(ranks=[1, 2])


@scenario
def a_storage_that_was_cut_is_refused() -> None:
    for form in (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.reducescatter):
        with pytest.raises(ValueError, match="storage was resized to fewer"):
            form(resized(hvd.rank(), 8))
    with pytest.raises(ValueError, match="storage was resized to fewer"):
        hvd.grouped_allreduce([torch.ones(2), resized(hvd.rank(), 8)])


@scenario
def a_storage_may_be_empty_if_the_tensor_is() -> None:
    empty = torch.from_numpy(np.ones(0, np.uint8))  # its storage has an address, and it has none
    for form in (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.reducescatter):
        assert form(empty).tolist() == []
    assert hvd.allgather(torch.from_numpy(np.ones(hvd.rank(), np.uint8))).tolist() == [1] * (hvd.size() - 1)


@scenario
def a_call_that_is_refused_on_one_rank_takes_no_automatic_name() -> None:
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="storage was resized to fewer"):
            hvd.allreduce(resized(0, 8))
    assert hvd.allreduce(torch.ones(8), op=hvd.Sum).tolist() == [hvd.size()] * 8


@scenario
def a_distributed_parameter_is_refused_when_its_optimizer_is_wrapped() -> None:
    for how in ("fully_shard", "shard", "replicate"):
        parameter = distributed(torch.ones(2, 2), how)
        parameter = parameter if isinstance(parameter, torch.nn.Parameter) else torch.nn.Parameter(parameter)
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for op in (hvd.Average, hvd.Adasum):
            with pytest.raises(ValueError, match=r"parameter 'weight' is a DTensor: .*; use either that or"):
                hvd.DistributedOptimizer(optimizer, [("weight", parameter)], op=op)
    parameter = torch.nn.Parameter(Wrapper(torch.ones(2)), requires_grad=False)
    with pytest.raises(ValueError, match=r"'noname.0.0' is a Wrapper, which has no memory of its own"):
        hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1))


@scenario
def an_expanded_gradient_is_replaced() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), op=hvd.Sum)
    own = torch.tensor(1.0).expand(3) if hvd.rank() == 0 else torch.arange(3.0)
    parameter.grad = own
    optimizer.step()
    others = hvd.size() - 1
    assert parameter.grad.tolist() == [1.0, 1.0 + others, 1.0 + 2 * others]
    assert parameter.tolist() == [-1.0, -1.0 - others, -1.0 - 2 * others]


@scenario
def buffers_of_a_state_dict_are_those_of_the_root() -> None:
    for make in (
        lambda rank: values(rank, 1)[0].expand(3),
        lambda rank: values(rank, 4, 2).t(),
        lambda rank: values(rank, 4).to(torch.uint16),
        lambda rank: values(rank, 4).to(torch.float8_e5m2),
        lambda rank: complex_values(rank, 3).conj(),
        lambda rank: torch.tensor(rank),
        lambda rank: torch.tensor(rank == 0),
        lambda rank: torch.empty(0),
    ):
        module = torch.nn.Module()
        module.register_buffer("buffer", make(hvd.rank()))
        hvd.broadcast_parameters(module.state_dict(), hvd.size() - 1)
        assert bytes_of(module.buffer) == bytes_of(make(hvd.size() - 1))
    if hvd.size() > 1:
        tensor = torch.ones(1).expand(3) if hvd.rank() else torch.arange(3.0)
        if hvd.rank():
            with pytest.raises(ValueError, match="expanded on this rank is not on the root"):
                hvd.broadcast_parameters({"buffer": tensor}, 0)
        else:
            hvd.broadcast_parameters({"buffer": tensor}, 0)


@scenario
def numbers_come_back_as_such() -> None:
    rank, size = hvd.rank(), hvd.size()
    total = size * (size - 1) // 2
    for number in (float(rank), rank, complex(rank), np.float32(rank), np.int16(rank), np.complex64(rank)):
        for result in (
            hvd.allreduce(number, op=hvd.Sum),
            hvd.synchronize(hvd.allreduce_async(number, op=hvd.Sum)),
            hvd.grouped_allreduce([number, torch.ones(2)], op=hvd.Sum)[0],
            hvd.allreduce(number, op=hvd.Sum, compression=hvd.Compression.fp16),
            hvd.grouped_allreduce([number, torch.ones(2)], op=hvd.Sum, compression=hvd.Compression.bf16)[0],
        ):
            assert (type(result), result) == (type(number), total)
        result = hvd.broadcast(number, size - 1)
        assert (type(result), result) == (type(number), size - 1)
    assert hvd.allreduce(torch.tensor(1.0)).shape == ()
    with pytest.raises(ValueError, match="a number cannot be written in place"):
        hvd.allreduce_(1.0)
    with pytest.raises(ValueError, match=r"got int; torch.tensor\(\[x\]\) makes one of one row"):
        hvd.allgather(3)
    with pytest.raises(ValueError, match=r"torch has no dtype datetime64\[s\]"):
        hvd.broadcast(np.datetime64(1, "s"), 0)


@scenario
def inside_transforms_and_modes_plain_tensors_are_right_and_others_an_error() -> None:
    own, total = values(hvd.rank(), 4), torch.stack([values(rank, 4) for rank in range(hvd.size())]).sum(0).tolist()
    sums: list[torch.Tensor] = []

    def function(inner: torch.Tensor) -> torch.Tensor:
        for collective in (hvd.allreduce, hvd.allgather, hvd.allreduce_, hvd.allgather_async):
            with pytest.raises((ValueError, RuntimeError), match=r"torch.func|functorch"):
                collective(inner)
        plain_tensors()
        return inner.sum()

    def plain_tensors() -> None:
        sums.append(hvd.allreduce(own, op=hvd.Sum))
        sums.append(hvd.synchronize(hvd.allreduce_async(own, op=hvd.Sum)))
        sums.append(hvd.allgather(own))
        sums.extend(hvd.alltoall(own, splits=[4] + [0] * (hvd.size() - 1)))

    torch.func.grad(function)(torch.ones(4))
    torch.func.functionalize(function)(torch.ones(4))
    torch.func.vmap(function)(torch.ones(2, 4))
    with FakeTensorMode(allow_non_fake_inputs=True):
        plain_tensors()
    with torch.device("meta"):
        plain_tensors()
    for first, second, gathered, received, splits in zip(*[iter(sums)] * 5, strict=True):
        assert first.tolist() == second.tolist() == total
        assert gathered.view(-1, 4).sum(0).tolist() == total
        assert received.numel() == (4 * hvd.size() if hvd.rank() == 0 else 0)
        assert splits.tolist() == [4 if hvd.rank() == 0 else 0] * hvd.size()


def test_torch_tensors(report: Report, name: str) -> None:
    assert report[name] == ""

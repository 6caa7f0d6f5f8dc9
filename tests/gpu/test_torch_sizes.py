"""Collectives of CUDA tensors of many types and sizes, against those of CPUs, and beside what else uses the GPU."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

import hvdlite.torch as hvd
from tests.frontends.scenarios import Scenarios
from tests.gpu.machine.place import IS_MACHINE
from tests.gpu.torch_fake.ranks import run_on_gpu
from tests.harness import process_ranks
from tests.harness.forkserver import ForkServer
from tests.harness.scenarios import Report, joined
from tests.harness.scenarios import pytest_generate_tests as pytest_generate_tests

scenario = Scenarios(ranks=[2, 3])

_DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
)
_SIZES = (1, 7, 1000, (1 << 16) + 3, *((1 << 20) + 1,) * IS_MACHINE)


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest, torch_ranks: ForkServer) -> Report:
    """The error of each scenario, by its name."""
    environ = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}  # there are two GPUs
    outcomes = process_ranks(request.param, run_on_gpu, __name__, (), environ=environ, server=torch_ranks)
    return joined([outcome.result() for outcome in outcomes])


def _all_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The results of all collectives of ``tensor``, of as many rows as there are ranks."""
    ops = [hvd.Sum, hvd.Min, hvd.Max, hvd.Product, *[hvd.Average] * tensor.is_floating_point()]
    reductions = [hvd.allreduce(tensor, op=op) for op in ops]
    moved, _ = hvd.alltoall(tensor, torch.ones(hvd.size(), dtype=torch.int32, device="cpu"))
    return [
        *reductions,
        *hvd.grouped_allreduce([tensor, tensor + 1], op=hvd.Sum),
        hvd.allgather(tensor),
        hvd.broadcast(tensor, hvd.size() - 1),
        hvd.reducescatter(tensor, op=hvd.Sum),
        moved,
    ]


@scenario
def all_collectives_of_all_types_and_sizes_are_those_of_cpus() -> None:
    for dtype in _DTYPES:
        for columns in _SIZES:
            values = torch.arange(hvd.size() * columns, device="cpu").view(hvd.size(), columns)
            mine = ((values + hvd.rank()) % 3).to(dtype)
            for found, wanted in zip(_all_of(mine.cuda()), _all_of(mine), strict=True):
                assert found.is_cuda
                assert torch.equal(found.cpu(), wanted), (dtype, columns)


@scenario
def float8_is_added_where_nccl_adds_it() -> None:
    mine = torch.arange(-1.0, 2.0) * 2 ** hvd.rank()  # all sums are of three bits
    total = torch.arange(-1.0, 2.0) * (2 ** hvd.size() - 1)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        sent = mine.to(dtype)
        assert torch.equal(hvd.broadcast(sent.cpu(), 0).float(), torch.arange(-1.0, 2.0, device="cpu"))
        with pytest.raises(ValueError, match="not supported by allreduce on CPUs; pass tensor.float"):
            hvd.allreduce(sent.cpu(), op=hvd.Sum)
        gathered = hvd.allgather(sent).float()
        assert torch.equal(gathered, torch.cat([torch.arange(-1.0, 2.0) * 2**rank for rank in range(hvd.size())]))
        if IS_MACHINE and (torch.cuda.get_device_capability() < (9, 0) or hvd.nccl_built() < 22400):
            with pytest.raises(ValueError, match="NCCL .*reduce.* float8"):
                hvd.allreduce(sent, op=hvd.Sum)
            continue
        found = hvd.allreduce(sent, op=hvd.Sum)
        assert found.dtype is dtype
        assert torch.equal(found.float(), total)
        most = torch.tensor([-1.0, 0.0, 2.0 ** (hvd.size() - 1)])
        assert torch.equal(hvd.allreduce(sent, op=hvd.Max).float(), most)
        assert all(torch.equal(each.float(), total) for each in hvd.grouped_allreduce([sent] * 20, op=hvd.Sum))
        rows = torch.ones(hvd.size(), 3).to(dtype)
        assert torch.equal(hvd.reducescatter(rows, op=hvd.Sum).float(), torch.full((1, 3), float(hvd.size())))
        mean = hvd.allreduce(torch.ones(3).to(dtype), op=hvd.Average).float()  # 1 / ranks is rounded, and all sums
        assert torch.allclose(mean, torch.ones(3), atol=2.0**-2)
        with pytest.raises(ValueError, match="float8 has no scale factors"):
            hvd.allreduce(sent, op=hvd.Sum, prescale_factor=0.5)


def sums_of_float8_are_rounded_once() -> None:
    """By the fakes; NCCL has its own ways."""
    bits = torch.arange(256, dtype=torch.uint8)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        everyones = [each.view(dtype) for each in (bits, bits.flip(0), bits * 0)]
        added = sum(each.float() for each in everyones[: hvd.size()])
        is_finite = added.abs() <= torch.finfo(dtype).max  # beyond, CUDA has the greatest one, and PyTorch none
        found = hvd.allreduce(everyones[hvd.rank()], op=hvd.Sum).float()
        assert torch.equal(found[is_finite], added.to(dtype).float()[is_finite])


if not IS_MACHINE:
    scenario(sums_of_float8_are_rounded_once)


@scenario
def several_process_sets_at_once_on_a_gpu() -> None:
    size = hvd.size()
    sets = [hvd.add_process_set([rank]) for rank in range(size)]
    if size == 3:
        sets += [hvd.add_process_set([first, (first + 1) % size]) for first in range(size)]
    mine = [each for each in [hvd.global_process_set, *sets] if each.included()]
    if hvd.rank() % 2:
        mine.reverse()
    for step in range(20):
        handles = [
            hvd.allreduce_async(torch.full((5000,), step + 1.0), op=hvd.Sum, name="of a set", process_set=each)
            for each in mine
        ]
        for each, handle in zip(mine, handles, strict=True):
            assert (hvd.synchronize(handle) == (step + 1.0) * each.size()).all()
    for each in sets:
        hvd.remove_process_set(each)


@scenario
def beside_torch_distributed_in_one_process() -> None:
    """On fakes it has CPU tensors over Gloo, which their PyTorch has."""
    backend, device = ("nccl", "cuda") if IS_MACHINE else ("gloo", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(hvd.broadcast_object(folder, 0), "meeting")
        dist.init_process_group(backend, init_method=meeting.as_uri(), rank=hvd.rank(), world_size=hvd.size())
        for step in range(20):
            ours, theirs = torch.full((1000,), step + 1.0), torch.full((1000,), step + 1.0, device=device)
            handle = hvd.allreduce_async_(ours, op=hvd.Sum)
            dist.all_reduce(theirs)
            assert torch.equal(hvd.synchronize(handle).cpu(), theirs.cpu())
        dist.destroy_process_group()
        hvd.barrier()  # before the folder goes


@scenario
def a_compiled_model_learns_what_one_process_would() -> None:
    """On fakes it is compiled as far as PyTorch goes without a GPU."""
    rows, features = 6, 4
    values = torch.linspace(-1, 1, rows * features, device="cpu").view(rows, features)

    def trained(inputs: torch.Tensor, compiles: bool, wraps: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model: Any = torch.nn.Sequential(torch.nn.Linear(features, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if wraps:
            hvd.broadcast_parameters(model.state_dict(), 0)
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        run = torch.compile(model, backend="inductor" if IS_MACHINE else "aot_eager") if compiles else model
        for _ in range(5):
            optimizer.zero_grad()
            run(inputs).square().mean().backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    mine = values.cuda()[hvd.rank() :: hvd.size()].contiguous()
    wanted = trained(values.cuda(), compiles=False, wraps=False)
    for found, of_one in zip(trained(mine, compiles=True, wraps=True), wanted, strict=True):
        assert torch.allclose(found, of_one, atol=1e-5)


def a_collective_in_a_captured_graph_is_refused_and_the_capture_goes_on() -> None:
    """Fakes capture nothing of PyTorch's; tests/gpu/test_captures.py has them."""
    source, stream = torch.full((100,), 3.0), torch.cuda.Stream()
    hvd.allreduce(source)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        doubled = source * 2
        with pytest.raises(ValueError, match="captur"):
            hvd.allreduce_async(doubled)
        result = doubled + 1
    for value in (3.0, 5.0):
        source.fill_(value)
        graph.replay()
        assert (result == 2 * value + 1).all()
        assert torch.equal(hvd.allreduce(result, op=hvd.Sum), result * hvd.size())


if IS_MACHINE:
    scenario(a_collective_in_a_captured_graph_is_refused_and_the_capture_goes_on)


def test_torch(report: Report, name: str) -> None:
    assert report[name] == ""

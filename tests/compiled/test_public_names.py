"""`torch.compile` around every public name: the results are those without it, and nothing of ours is traced."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import hvdlite
import hvdlite.torch as hvd
from tests.compiled.outcomes import outcome
from tests.compiled.tracing import probe
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH

Function = Callable[[torch.Tensor], Any]


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


def optimizer_of(trained: nn.Module, **options: Any) -> Any:
    bare = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.5)
    return hvd.DistributedOptimizer(bare, trained.named_parameters(), **options)


def three_steps(make: Callable[[nn.Module], Any], **options: Any) -> Function:
    """Three steps of a new model, whose parameters are the result. ``make`` builds the function of one step from it."""

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        trained = model()
        step = make(trained, **options)
        for _ in range(3):
            step(x)
        return [parameter.detach().clone() for parameter in trained.parameters()]

    return run


def training_step(
    trained: nn.Module, compiled: Callable[[Any], Any] = lambda function: function, **options: Any
) -> Any:
    optimizer = optimizer_of(trained, **options)

    @compiled
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = trained(x.expand(5, 4) * (1 + hvd.rank())).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def raised(function: Callable[[], Any]) -> str:
    try:
        function()
    except (hvd.HvdError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def disagree(x: torch.Tensor) -> torch.Tensor:
    return hvd.allreduce(x[: 2 + hvd.rank()], name="disagreement")


def exchanged(x: torch.Tensor) -> Any:
    """Each rank sends to the next one, even ones first."""
    following, before = (hvd.rank() + 1) % hvd.size(), (hvd.rank() - 1) % hvd.size()
    handle = hvd.send_async(x, following, name="ring")
    received = hvd.recv(x, before, name="ring")
    return received, hvd.synchronize(handle)


def sent(x: torch.Tensor) -> Any:
    if hvd.size() == 1:
        return None
    if hvd.rank() == 0:
        return hvd.send(x, 1)
    return hvd.recv_(x.clone(), 0) if hvd.rank() == 1 else None


def received(start: Callable[..., Any]) -> Function:
    def run(x: torch.Tensor) -> Any:
        following, before = (hvd.rank() + 1) % hvd.size(), (hvd.rank() - 1) % hvd.size()
        if hvd.size() == 1:
            return None
        handle = start(x.clone(), before, name="ring2")
        hvd.synchronize(hvd.send_async(x, following, name="ring2"))
        return hvd.synchronize(handle)

    return run


def with_a_set(x: torch.Tensor) -> Any:
    members = hvd.add_process_set([0])
    result = hvd.allreduce(x, process_set=members) if members.included() else x
    hvd.remove_process_set(members)
    return result


def recorded(x: torch.Tensor) -> Any:
    hvd.start_timeline(f"/tmp/hvdlite-test-{os.getpid()}.json")
    result = hvd.allreduce(x)
    hvd.stop_timeline()
    for path in glob.glob(f"/tmp/hvdlite-test-{os.getpid()}.json*"):
        os.remove(path)
    return result


def begun_again(x: torch.Tensor) -> Any:
    hvd.shutdown()
    before = hvd.is_initialized()
    hvd.init()
    return before, hvd.allreduce(x)


def loaded_state(x: torch.Tensor) -> Any:
    trained = model()
    optimizer = optimizer_of(trained)
    for group in optimizer.param_groups:
        group["lr"] = 1.0 + hvd.rank()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return [group["lr"] for group in optimizer.param_groups]


def broadcast_model(x: torch.Tensor) -> Any:
    trained = model()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(hvd.rank())
    hvd.broadcast_parameters(trained.state_dict(), root_rank=hvd.size() - 1)
    return list(trained.state_dict().values())


def normalized(convert: Callable[[nn.Module], nn.Module]) -> Function:
    def run(x: torch.Tensor) -> Any:
        layer = convert(nn.BatchNorm1d(4))
        values = (x.expand(4, 4) * torch.arange(1.0, 5.0).unsqueeze(1) * (1 + hvd.rank())).requires_grad_()
        result = layer(values)
        (result * torch.arange(16.0).view(4, 4)).sum().backward()
        return result.detach(), values.grad

    return run


def finished(start: Callable[..., Any], *arguments: Any, **options: Any) -> Function:
    return lambda x: hvd.synchronize(start(x.clone(), *arguments, **options))


def grouped(start: Callable[..., Any], ends: bool = False, **options: Any) -> Function:
    def run(x: torch.Tensor) -> Any:
        result = start([x.clone(), 2 * x], **options)
        return hvd.synchronize(result) if ends else result

    return run


def polled(x: torch.Tensor) -> Any:
    handle = hvd.allreduce_async(x)
    while not hvd.poll(handle):
        pass
    return hvd.synchronize(handle)


def of_sparse(x: torch.Tensor) -> Any:
    wait = hvd.sparse_allreduce_async(x.to_sparse(), name="sparse")
    return wait().to_dense()


def caught(kind: type[BaseException], function: Function) -> Function:
    def run(x: torch.Tensor) -> Any:
        try:
            return function(x)
        except kind as error:
            return str(error)

    return run


def twice(x: torch.Tensor) -> Any:
    if hvd.size() == 1:
        return None
    first = hvd.recv_async(x.clone(), (hvd.rank() + 1) % hvd.size(), name="twice")
    message = raised(lambda: hvd.recv_async(x.clone(), (hvd.rank() + 1) % hvd.size(), name="twice"))
    hvd.barrier()  # no rank sends before every rank was refused
    hvd.synchronize(hvd.send_async(x, (hvd.rank() - 1) % hvd.size(), name="twice"))
    return message, hvd.synchronize(first)


def scaled(constant: int) -> Function:
    return lambda x: hvd.allreduce(x, op=constant)


def instance(kind: type) -> Function:
    """An error of ours as what it is: a class that compiled code makes and catches."""

    def run(x: torch.Tensor) -> Any:
        try:
            raise kind("made here")
        except hvd.HvdError as error:
            return x + len(str(error))

    return run


def halved(x: torch.Tensor) -> Any:
    small, context = hvd.Compression.fp16.compress(x)
    return hvd.allreduce(hvd.Compression.fp16.decompress(small, context), compression=hvd.Compression.fp16)


class Doubled(hvd.Compressor):
    """A compression of the user's."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor * 2, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor / 2


def uneven(x: torch.Tensor) -> Any:
    total = hvd.allreduce(x, op=hvd.Sum) if hvd.rank() == 0 else None
    last = hvd.join()
    return total, 0 <= last < hvd.size()


def splits() -> list[int]:
    return [4] + [0] * (hvd.size() - 1)


def shared(x: torch.Tensor) -> Any:
    tensor = hvd.shared_empty(4)
    tensor.copy_(x)
    return hvd.allreduce_(tensor)


TABLE: dict[str, Function] = {
    "Adasum": scaled(hvd.Adasum),
    "Average": scaled(hvd.Average),
    "Compression": halved,
    "Compressor": lambda x: hvd.allreduce(x, compression=Doubled),
    "DistributedOptimizer": three_steps(training_step),
    "DuplicateName": twice,
    "HorovodInternalError": caught(hvd.HorovodInternalError, disagree),
    "HvdError": caught(hvd.HvdError, disagree),
    "Max": scaled(hvd.Max),
    "Min": scaled(hvd.Min),
    "Mismatch": caught(hvd.Mismatch, disagree),
    "NativeUnavailable": instance(hvd.NativeUnavailable),
    "PeerLost": instance(hvd.PeerLost),
    "ProcessSet": lambda x: x * len(hvd.ProcessSet([0]).ranks),
    "Product": scaled(hvd.Product),
    "ShutDown": instance(hvd.ShutDown),
    "Stalled": instance(hvd.Stalled),
    "Sum": scaled(hvd.Sum),
    "SyncBatchNorm": normalized(lambda layer: hvd.SyncBatchNorm(layer.num_features)),
    "__version__": lambda x: x + len(hvd.__version__),
    "add_process_set": with_a_set,
    "allgather": lambda x: hvd.allgather(x[: 1 + hvd.rank()]),
    "allgather_async": lambda x: hvd.synchronize(hvd.allgather_async(x[: 1 + hvd.rank()])),
    "allgather_object": lambda x: hvd.allgather_object({"rank": hvd.rank()}),
    "allreduce": lambda x: hvd.allreduce(x * (1 + hvd.rank())) + 1,
    "allreduce_": lambda x: hvd.allreduce_(x * (1 + hvd.rank())) + 1,
    "allreduce_async": finished(hvd.allreduce_async, op=hvd.Sum),
    "allreduce_async_": finished(hvd.allreduce_async_, op=hvd.Sum),
    "alltoall": lambda x: (hvd.alltoall(torch.cat([x] * hvd.size())), hvd.alltoall(x, splits=splits())),
    "alltoall_async": lambda x: hvd.synchronize(hvd.alltoall_async(x, splits())),
    "barrier": lambda x: (hvd.barrier(), x + 1),
    "broadcast": lambda x: hvd.broadcast(x + hvd.rank(), root_rank=hvd.size() - 1),
    "broadcast_": lambda x: hvd.broadcast_(x + hvd.rank(), root_rank=hvd.size() - 1),
    "broadcast_async": lambda x: hvd.synchronize(hvd.broadcast_async(x + hvd.rank(), 0)),
    "broadcast_async_": lambda x: hvd.synchronize(hvd.broadcast_async_(x + hvd.rank(), 0)),
    "broadcast_object": lambda x: hvd.broadcast_object({"of": hvd.rank()}, root_rank=0),
    "broadcast_optimizer_state": loaded_state,
    "broadcast_parameters": broadcast_model,
    "ccl_built": lambda x: hvd.ccl_built(),
    "convert_sync_batchnorm": normalized(hvd.convert_sync_batchnorm),
    "cross_rank": lambda x: x + hvd.cross_rank(),
    "cross_size": lambda x: x + hvd.cross_size(),
    "cuda_built": lambda x: hvd.cuda_built(),
    "ddl_built": lambda x: hvd.ddl_built(),
    "gather": lambda x: hvd.gather(x[: 1 + hvd.rank()], root_rank=0),
    "gather_async": lambda x: hvd.synchronize(hvd.gather_async(x[: 1 + hvd.rank()], root_rank=0)),
    "global_process_set": lambda x: (
        hvd.allreduce(x, process_set=hvd.global_process_set) * hvd.global_process_set.size()
    ),
    "gloo_built": lambda x: hvd.gloo_built(),
    "gloo_enabled": lambda x: hvd.gloo_enabled(),
    "grouped_allgather": grouped(hvd.grouped_allgather),
    "grouped_allgather_async": grouped(hvd.grouped_allgather_async, ends=True),
    "grouped_allreduce": grouped(hvd.grouped_allreduce),
    "grouped_allreduce_": grouped(hvd.grouped_allreduce_),
    "grouped_allreduce_async": grouped(hvd.grouped_allreduce_async, ends=True),
    "grouped_allreduce_async_": grouped(hvd.grouped_allreduce_async_, ends=True),
    "grouped_reducescatter": grouped(hvd.grouped_reducescatter),
    "grouped_reducescatter_async": grouped(hvd.grouped_reducescatter_async, ends=True),
    "init": lambda x: (hvd.init(), x + 1),
    "is_homogeneous": lambda x: hvd.is_homogeneous(),
    "is_initialized": lambda x: hvd.is_initialized(),
    "join": uneven,
    "local_rank": lambda x: x + hvd.local_rank(),
    "local_size": lambda x: x + hvd.local_size(),
    "mpi_built": lambda x: hvd.mpi_built(),
    "mpi_enabled": lambda x: hvd.mpi_enabled(),
    "mpi_threads_supported": lambda x: hvd.mpi_threads_supported(),
    "nccl_built": lambda x: hvd.nccl_built(),
    "poll": polled,
    "rank": lambda x: x + hvd.rank(),
    "recv": lambda x: exchanged(x) if hvd.size() > 1 else None,
    "recv_": sent,
    "recv_async": received(hvd.recv_async),
    "recv_async_": received(hvd.recv_async_),
    "reduce": lambda x: hvd.reduce(x, root_rank=0, op=hvd.Sum),
    "reduce_async": finished(hvd.reduce_async, 0),
    "reducescatter": lambda x: hvd.reducescatter(x * (1 + hvd.rank()), op=hvd.Sum),
    "reducescatter_async": finished(hvd.reducescatter_async),
    "remove_process_set": with_a_set,
    "rocm_built": lambda x: hvd.rocm_built(),
    "scatter": lambda x: hvd.scatter(x, root_rank=0),
    "scatter_async": finished(hvd.scatter_async, 0),
    "send": sent,
    "send_async": lambda x: exchanged(x) if hvd.size() > 1 else None,
    "shared_empty": shared,
    "shutdown": begun_again,
    "size": lambda x: x + hvd.size(),
    "sparse_allreduce_async": of_sparse,
    "start_timeline": recorded,
    "stop_timeline": recorded,
    "synchronize": finished(hvd.allreduce_async, name="given"),
}
"""A use of each name, of a vector of four numbers."""

OF_NUMPY: dict[str, Function] = {
    "numpy's allreduce": lambda x: torch.as_tensor(hvdlite.allreduce((x * (1 + hvd.rank())).numpy())) + 1,
    "numpy's allgather_async": lambda x: hvdlite.synchronize(hvdlite.allgather_async(x.numpy()[: 1 + hvd.rank()])),
    "numpy's grouped_allreduce_": lambda x: hvdlite.grouped_allreduce_([x.numpy().copy()], name="array")[0] * 2,
}
"""Collectives of arrays, beside those of tensors."""
USES = {**TABLE, **OF_NUMPY}

PART = (
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather",
    "allreduce",
    "allreduce_async",
    "broadcast_object",
    "recv",
)


def cells(names: Sequence[str]) -> tuple[int, dict[str, str]]:
    """Counts the rows that dynamo compiled, and returns those that are not *right*, with their results."""
    hvd.init()
    wrong: dict[str, str] = {}
    compiled = 0
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    for name in names:
        function = USES[name]
        expected = outcome(function, x)
        torch._dynamo.reset()
        with probe() as traced:
            found = [outcome(torch.compile(function, backend="eager"), x) for _ in range(2)]
        if any(each != expected for each in found):
            wrong[name] = f"{found}, not {expected}"
        if traced.ours:
            wrong[name] = f"traced {sorted(traced.ours)}"
        compiled += bool(traced.frames)
    hvd.barrier()  # some rows are between two ranks: the third must not end the session meanwhile
    hvd.shutdown()
    return compiled, wrong


def test_the_table_has_every_public_name() -> None:
    assert sorted(TABLE) == sorted(hvd.__all__)


@pytest.mark.parametrize(("ranks", "names"), [(2, [*USES]), (1, PART), (3, PART)], ids=["2", "1", "3"])
def test_every_public_name_with_graph_breaks(ranks: int, names: Sequence[str]) -> None:
    for rank in process_ranks(ranks, cells, names, server=TORCH):
        compiled, wrong = rank.result()
        assert wrong == {}
        assert compiled > len(names) / 2  # up to what ends their graphs, rows are compiled indeed

"""The back end of torch.distributed: every collective, compared with Gloo, in the same processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hvdlite_torch
import pytest
import torch
import torch.distributed.checkpoint
from torch import distributed
from torch.distributed import _functional_collectives as functional
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Shard, distribute_tensor

from hvdlite.settings import Start
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH

_Op = distributed.ReduceOp
_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.int8, torch.uint8, torch.int32, torch.int64),
)


def _own(shape: tuple[int, ...] = (3, 2), dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor whose elements differ, and between ranks."""
    count = torch.Size(shape).numel()
    return (torch.arange(1, count + 1) + distributed.get_rank()).reshape(shape).to(dtype)


def _reduced(dtype: torch.dtype = torch.float32, op: Any = _Op.SUM, **where: Any) -> torch.Tensor:
    tensor = _own(dtype=dtype)
    distributed.all_reduce(tensor, op=op, **where)
    return tensor


def _calls(size: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls by name, each of which returns a result to compare, or raises."""
    for dtype in _DTYPES:
        yield f"all_reduce of {dtype}", lambda dtype=dtype: _reduced(dtype)
    for op in (_Op.MIN, _Op.MAX, _Op.PRODUCT, _Op.AVG):
        yield f"all_reduce with {op}", lambda op=op: _reduced(op=op)
    for op in (_Op.BAND, _Op.BOR, _Op.BXOR):
        yield f"all_reduce with {op}", lambda op=op: _reduced(torch.int64, op)
    own: list[Callable[[int], Any]] = [
        *(_broadcast, _broadcast_complex, _all_gather, _all_gather_single, _reduce_scatter, _reduce_scatter_single),
        *(_all_to_all, _all_to_all_single, _all_to_all_splits, _reduce, _gather, _scatter, _objects, _messages),
        *(_messages_in_batch, _coalesced, _future, _callback, _scalar, _transposed, _sparse, _empty),
    ]
    for call in own:
        yield call.__name__, lambda call=call: call(size)


def _broadcast(size: int) -> Any:
    tensor = _own()
    distributed.broadcast(tensor, size - 1)
    return tensor


def _broadcast_complex(size: int) -> Any:
    tensor = _own(dtype=torch.complex64) * 1j
    distributed.broadcast(tensor, 1)
    return tensor


def _all_gather(size: int) -> Any:
    found = [torch.empty(3, 2) for _ in range(size)]
    distributed.all_gather(found, _own())
    return found


def _all_gather_single(size: int) -> Any:
    found = torch.empty(3 * size, 2, dtype=torch.bool)
    distributed.all_gather_single(found, _own() > 3)
    return found


def _reduce_scatter(size: int) -> Any:
    found = torch.empty(2)
    distributed.reduce_scatter(found, [_own((2,)) + index for index in range(size)])
    return found


def _reduce_scatter_single(size: int) -> Any:
    found = torch.empty(2, 3)
    distributed.reduce_scatter_single(found, _own((2 * size, 3)), op=_Op.MAX)
    return found


def _all_to_all(size: int) -> Any:
    found = [torch.empty(2, 3) for _ in range(size)]
    distributed.all_to_all(found, [_own((2, 3)) + index for index in range(size)])
    return found


def _all_to_all_single(size: int) -> Any:
    found = torch.empty(size, 2, dtype=torch.int32)
    distributed.all_to_all_single(found, _own((size, 2), torch.int32))
    return found


def _all_to_all_splits(size: int) -> Any:
    rank = distributed.get_rank()
    sent, room = [rank + index for index in range(size)], [index + rank for index in range(size)]
    found = torch.empty(sum(room), 3, dtype=torch.float64)
    distributed.all_to_all_single(found, _own((sum(sent), 3), torch.float64), room, sent)
    return found


def _reduce(size: int) -> Any:
    tensor = _own()
    distributed.reduce(tensor, size - 1)
    return tensor if distributed.get_rank() == size - 1 else None


def _gather(size: int) -> Any:
    found = [torch.empty(3, 2) for _ in range(size)] if distributed.get_rank() == 0 else None
    distributed.gather(_own(), found)
    return found


def _scatter(size: int) -> Any:
    found = torch.empty(3, 2)
    parts = [_own() * index for index in range(size)] if distributed.get_rank() == 1 else None
    distributed.scatter(found, parts, src=1)
    return found


def _objects(size: int) -> Any:
    rank = distributed.get_rank()
    gathered: list[Any] = [None] * size
    distributed.all_gather_object(gathered, {"rank": rank, "long": "x" * 1000 * rank})
    received: list[Any] = [rank, "of", rank]
    distributed.broadcast_object_list(received, src=size - 1)
    scattered: list[Any] = [None]
    distributed.scatter_object_list(scattered, [f"for {each}" for each in range(size)] if rank == 0 else [None] * size)
    return gathered, received, scattered


def _messages(size: int) -> Any:
    """Of two tags, received in another order."""
    rank = distributed.get_rank()
    if rank == 0:
        works = [distributed.isend(_own() * tag, 1, tag=tag) for tag in (1, 2)]
        for work in works:
            assert work is not None
            work.wait()
        return None
    if rank == 1:
        found = torch.empty(2, 3, 2)
        for tag in (2, 1):
            distributed.recv(found[tag - 1], 0, tag=tag)
        return found
    return None


def _messages_in_batch(size: int) -> Any:
    rank = distributed.get_rank()
    found = torch.empty(3, 2)
    there, here = (rank + 1) % size, (rank - 1) % size
    operations = [
        distributed.P2POp(distributed.isend, _own(), there),
        distributed.P2POp(distributed.irecv, found, here),
    ]
    for work in distributed.batch_isend_irecv(operations):
        work.wait()
    return found


def _coalesced(size: int) -> Any:
    tensors = [_own() * index for index in range(4)]
    with distributed._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            distributed.all_reduce(tensor)
    manager.wait()
    return tensors


def _future(size: int) -> Any:
    tensors = [_own() * index for index in range(5)]
    works = [distributed.all_reduce(tensor, async_op=True) for tensor in tensors]
    in_order: list[bool] = []
    futures: list[Any] = []
    chained = []
    for index, work in enumerate(works):
        assert work is not None
        futures.append(work.get_future())

        def double(future: Any, index: int = index) -> Any:
            in_order.append(all(before.done() for before in futures[:index]))
            return future.value()[0] * 2

        chained.append(futures[-1].then(double))
    doubled = [future.wait() for future in chained]
    assert in_order == [True] * 5 or distributed.get_backend() == "gloo"  # which has no order
    return doubled


def _callback(size: int) -> Any:
    """A callback that makes another call."""
    tensor, other = _own(), _own() * 3
    first = distributed.all_reduce(tensor, async_op=True)
    assert first is not None
    future = first.get_future().then(lambda _: distributed.all_reduce(other, async_op=True))
    future.wait().wait()
    return tensor, other


def _scalar(size: int) -> Any:
    tensor = torch.tensor(float(distributed.get_rank()))
    distributed.all_reduce(tensor)
    return tensor


def _transposed(size: int) -> Any:
    """Tensors that are not contiguous, as results and as inputs."""
    gathered = torch.empty(2, 3 * size).t()
    inputs = _own((2, 3)).t()
    parts = list(gathered.split(3))
    distributed.all_gather(parts, inputs.contiguous())
    return gathered


def _sparse(size: int) -> Any:
    rank = distributed.get_rank()
    tensor = torch.sparse_coo_tensor([[rank, size]], [1.0, 2.0], (size + 1,), check_invariants=True)
    distributed.all_reduce(tensor)
    return tensor.to_dense()


def _empty(size: int) -> Any:
    tensor = torch.empty(0, 3)
    distributed.all_reduce(tensor)
    return tensor


def _as_lists(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.tolist()
    return [_as_lists(each) for each in result] if isinstance(result, (list, tuple)) else result


def _begin(folder: str, backend: str) -> tuple[int, int]:
    start = Start.read()
    distributed.init_process_group(
        backend, init_method=f"file://{folder}/{backend}", rank=start.rank, world_size=start.size
    )
    return start.rank, start.size


def _results(folder: str, backend: str, calls: Any = _calls) -> dict[str, Any]:
    _, size = _begin(folder, backend)
    found = {}
    for name, call in calls(size):
        try:
            found[name] = _as_lists(call())
        except Exception:
            found[name] = traceback.format_exc()
    distributed.destroy_process_group()
    return found


def _both(folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return _results(folder, "hvdlite"), _results(folder, "gloo")


@pytest.mark.parametrize("size", [2, 4])
def test_every_call_has_the_result_of_gloo(size: int, tmp_path: Path) -> None:
    for outcome in process_ranks(size, _both, str(tmp_path), server=TORCH):
        ours, gloos = outcome.result()
        assert not [each for each in ours.values() if str(each).startswith("Traceback")]
        assert ours == gloos


def _models(size: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is built on torch.distributed."""
    programs: list[Callable[[int], Any]] = [
        *(_ddp, _ddp_without_views, _ddp_with_hooks, _ddp_with_join, _zero_redundancy, _fsdp2, _fsdp1),
        *(_functional, _compiled, _dtensor, _checkpoint, _pipelines),
    ]
    for program in programs:
        yield program.__name__, lambda program=program: program(size)


def _net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))


def _steps(model: torch.nn.Module, optimizer: Any = None) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        torch.manual_seed(100 * step + distributed.get_rank())
        optimizer.zero_grad()
        model(torch.randn(5, 4)).pow(2).sum().backward()
        optimizer.step()


def _weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in model.parameters()]


def _ddp(size: int) -> Any:
    model = torch.nn.parallel.DistributedDataParallel(_net(), gradient_as_bucket_view=True, bucket_cap_mb=0.0002)
    _steps(model)
    return _weights(model)


def _ddp_without_views(size: int) -> Any:
    model = torch.nn.parallel.DistributedDataParallel(_net(), find_unused_parameters=True)
    with model.no_sync():
        model(torch.ones(1, 4)).sum().backward()
    _steps(model)
    return _weights(model)


def _ddp_with_hooks(size: int) -> Any:
    """The second one waits for a future in a callback of another."""
    found = []
    for hook, state in (
        (default_hooks.fp16_compress_hook, None),
        (powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)),
    ):
        model = torch.nn.parallel.DistributedDataParallel(_net())
        model.register_comm_hook(state, hook)
        _steps(model)
        found.append(_weights(model))
    return found


def _ddp_with_join(size: int) -> Any:
    model = torch.nn.parallel.DistributedDataParallel(_net())
    with model.join():
        for _ in range(2 + distributed.get_rank()):
            model(torch.ones(1, 4)).sum().backward()
    return _weights(model)


def _zero_redundancy(size: int) -> Any:
    model = torch.nn.parallel.DistributedDataParallel(_net())
    _steps(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1))
    return _weights(model)


def _fsdp2(size: int) -> Any:
    model = _net()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    _steps(model)
    return [parameter.full_tensor() for parameter in model.parameters()]


def _fsdp1(size: int) -> Any:
    model = FullyShardedDataParallel(_net(), device_id=torch.device("cpu"))
    _steps(model)
    return _weights(model)


def _functional(size: int) -> Any:
    world = distributed.group.WORLD
    return [
        functional.all_reduce(_own(), "sum", world) * 1,
        functional.all_gather_tensor(_own(), 0, world) * 1,
        functional.reduce_scatter_tensor(_own((size, 3)), "sum", 0, world) * 1,
        functional.all_to_all_single(_own((size,)), None, None, world) * 1,
    ]


def _compiled(size: int) -> Any:
    @torch.compile(backend="aot_eager")
    def doubled(tensor: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(tensor * 2, "sum", distributed.group.WORLD) + 1

    return doubled(_own())


def _dtensor(size: int) -> Any:
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    rows = distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
    columns = distribute_tensor(torch.randn(4, 8), mesh, [Shard(1)])
    return (rows @ columns).full_tensor(), rows.sum().full_tensor()


def _checkpoint(size: int) -> Any:
    folders = [tempfile.mkdtemp() if distributed.get_rank() == 0 else None]
    distributed.broadcast_object_list(folders)
    torch.distributed.checkpoint.save({"a": torch.arange(3.0)}, checkpoint_id=folders[0])
    state = {"a": torch.zeros(3)}
    torch.distributed.checkpoint.load(state, checkpoint_id=folders[0])
    return state["a"]


def _pipelines(size: int) -> Any:
    found = []
    for schedule_of in (ScheduleGPipe, Schedule1F1B):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 4)
        stage = PipelineStage(layer, distributed.get_rank(), size, torch.device("cpu"))
        schedule = schedule_of(stage, 4, loss_fn=lambda output, target: (output - target).pow(2).sum())
        is_first, is_last = distributed.get_rank() == 0, distributed.get_rank() == size - 1
        schedule.step(*[_own((8, 4))] * is_first, **({"target": torch.zeros(8, 4)} if is_last else {}))
        found.append([layer.weight.grad, layer.bias.grad])
    return found


def _models_of_both(folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return _results(folder, "hvdlite", _models), _results(folder, "gloo", _models)


@pytest.mark.parametrize("size", [2, 4])
def test_what_is_built_on_it_has_the_results_of_gloo(size: int, tmp_path: Path) -> None:
    for outcome in process_ranks(size, _models_of_both, str(tmp_path), server=TORCH):
        ours, gloos = outcome.result()
        for name in gloos:
            assert not str(gloos[name]).startswith("Traceback"), gloos[name]
            assert not str(ours[name]).startswith("Traceback"), ours[name]
            error = 5e-3 if name == "_ddp_with_hooks" else 1e-5  # of float16, which they add in another order
            torch.testing.assert_close(_flat(ours[name]), _flat(gloos[name]), rtol=error, atol=error)


def _flat(result: Any) -> torch.Tensor:
    return torch.cat([_flat(each) for each in result]) if isinstance(result, list) else torch.tensor([float(result)])


def _differing(folder: str) -> str:
    rank, _ = _begin(folder, "hvdlite")
    tensor = torch.ones(2)
    try:
        distributed.broadcast(tensor, 0) if rank == 0 else distributed.all_reduce(tensor)
    except distributed.DistBackendError as error:
        return str(error)
    finally:
        distributed.destroy_process_group()
    return ""


def test_ranks_that_make_different_calls_get_a_mismatch(tmp_path: Path) -> None:
    for outcome in process_ranks(3, _differing, str(tmp_path), server=TORCH):
        assert "rank 0 has broadcast; ranks 1, 2 have allreduce" in outcome.result()


def _odd_programs(folder: str) -> None:
    rank, _ = _begin(folder, "hvdlite")
    _wait_for_the_second_first(rank)
    _ask_whether_it_is_done()
    _reduce_what_has_a_gradient(rank)
    _exchange_nothing(rank)
    slow = distributed.all_reduce(_own(), async_op=True)
    assert slow is not None
    is_over = threading.Event()
    slow.get_future().then(lambda _: is_over.wait())
    is_over.set()
    distributed.destroy_process_group()  # while a callback may be running
    assert not [each for each in threading.enumerate() if each.name.startswith("hvdlite-futures")]


def _wait_for_the_second_first(rank: int) -> None:
    """Rank 0 waits for a call before it sends what another call of it waits for."""
    tensor, total = torch.zeros(2), torch.ones(2)
    if rank == 0:
        first = distributed.irecv(tensor, 1)
        second = distributed.all_reduce(total, async_op=True)
        assert first is not None
        assert second is not None
        first.get_future()
        second.get_future()
        second.wait()
        distributed.send(total, 1)
        first.wait()
        assert tensor.tolist() == [2, 2]
    else:
        distributed.all_reduce(total)
        distributed.recv(tensor, 0)
        distributed.send(tensor, 0)


def _ask_whether_it_is_done() -> None:
    for _ in range(50):
        work = distributed.all_reduce(_own(), async_op=True)
        assert work is not None
        work.get_future()
        while not work.is_success():
            pass
    found = [torch.zeros(2) for _ in range(2)]
    work = distributed.all_gather(found, torch.ones(2), async_op=True)
    assert work is not None
    while not work.is_completed():
        pass
    assert [each.tolist() for each in found] == [[1, 1], [1, 1]]


def _reduce_what_has_a_gradient(rank: int) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    loss = (weight * 3).sum()
    distributed.reduce(loss, 0)
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [3, 3, 3]
    image = torch.nn.Parameter(torch.full((2, 3, 4, 4), float(rank)).to(memory_format=torch.channels_last))
    distributed.broadcast(image, 1)
    assert image.sum() == 96
    with torch.inference_mode():
        turned = torch.ones(2, 2).t()
        work = distributed.all_reduce(turned, async_op=True)
        assert work is not None
        work.get_future()
        work.wait()
        assert turned.tolist() == [[2, 2], [2, 2]]


def _exchange_nothing(rank: int) -> None:
    found = torch.empty(2, 3)
    sent = torch.ones(4 * rank, 3)
    distributed.all_to_all_single(found, sent, [0, 2], [2 * rank, 2 * rank])
    assert found.sum() == 6
    distributed.all_to_all([torch.empty(0)] * 2, [torch.empty(0)] * 2)
    turned = torch.empty(2, dtype=torch.complex64)
    distributed.all_to_all_single(turned, torch.ones(2, dtype=torch.complex64) * 1j)
    assert turned.tolist() == [1j, 1j]


def test_odd_programs(tmp_path: Path) -> None:
    for outcome in process_ranks(2, _odd_programs, str(tmp_path), server=TORCH):
        outcome.result()


_ENDS = """
import os, sys, torch
from torch import distributed
distributed.init_process_group("hvdlite")
if sys.argv[1] == "lost":
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    if distributed.get_rank() == 1:
        os._exit(0)
    try:
        while True:
            model(torch.ones(2, 4)).sum().backward()
    except RuntimeError as error:
        assert "rank 1" in str(error), error
    os._exit(0)
for _ in range(5):  # under one prefix of the store, and the last one is not destroyed
    distributed.all_reduce(torch.ones(4), async_op=True).get_future().wait()
    if _ < 4:
        distributed.destroy_process_group()
        distributed.init_process_group("hvdlite")
"""


@pytest.mark.parametrize("how", ["lost", "left open"])
def test_how_processes_of_torchrun_end(how: str, tmp_path: Path) -> None:
    """One ends inside a backward of the other; both end without a word."""
    script = tmp_path / "script.py"
    script.write_text(_ENDS)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HVDLITE")}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    ended = subprocess.run([*torchrun, str(script), how], env=environ, capture_output=True, check=False, text=True)
    assert ended.returncode == 0, ended.stderr


def _leaving(folder: str) -> str:
    """Rank 0 leaves while the others make a call."""
    rank, _ = _begin(folder, "hvdlite")
    try:
        if rank > 0:
            _reduced()
    except distributed.DistBackendError as error:
        return str(error)
    finally:
        distributed.destroy_process_group()
    return ""


def test_a_rank_that_leaves_early_is_named_on_the_others(tmp_path: Path) -> None:
    left, *others = [outcome.result() for outcome in process_ranks(3, _leaving, str(tmp_path), server=TORCH)]
    assert left == ""
    for told in others:
        assert "rank 0 has barrier; ranks 1, 2 have allreduce" in told


def _messages_between_some(folder: str) -> float:
    """Rank 2 leaves while the others still send each other messages."""
    rank, _ = _begin(folder, "hvdlite")
    tensor = torch.zeros(2)
    for number in range(20 if rank < 2 else 0):
        if number % 2 == rank:
            distributed.send(tensor + number, 1 - rank)
        else:
            distributed.recv(tensor, 1 - rank)
            assert tensor.tolist() == [number, number]
            tensor.zero_()
    distributed.destroy_process_group()
    return float(tensor.sum())


def test_ranks_may_send_messages_when_another_has_left(tmp_path: Path) -> None:
    assert [each.result() for each in process_ranks(3, _messages_between_some, str(tmp_path), server=TORCH)] == [0] * 3


def _groups(folder: str) -> list[Any]:
    """Two groups that overlap, a group of Gloo beside them, and ranks outside."""
    rank, size = _begin(folder, "hvdlite")
    first, last = distributed.new_group([0, 1]), distributed.new_group([size - 2, size - 1])
    gloo = distributed.new_group(backend="gloo")
    found: list[Any] = []
    for group in (first, last, gloo, None):
        if group is distributed.GroupMember.NON_GROUP_MEMBER:
            found.append(None)
            continue
        tensor = torch.tensor([float(rank)])
        distributed.all_reduce(tensor, group=group)
        found.append(tensor.item())
    distributed.destroy_process_group()
    return found


def test_groups_of_some_ranks(tmp_path: Path) -> None:
    found = [outcome.result() for outcome in process_ranks(3, _groups, str(tmp_path), server=TORCH)]
    assert found == [[1.0, None, 3.0, 3.0], [1.0, 3.0, 3.0, 3.0], [None, 3.0, 3.0, 3.0]]


def _again(folder: str) -> float:
    total = 0.0
    for number in range(10):
        place = Path(folder) / str(number)
        place.mkdir(exist_ok=True)
        _begin(str(place), "hvdlite")
        total += _reduced().sum().item()
        distributed.destroy_process_group()
    return total


def test_a_group_may_be_made_again(tmp_path: Path) -> None:
    for outcome in process_ranks(2, _again, str(tmp_path), server=TORCH):
        assert outcome.result() == 10 * (2 * 21 + 6)


def _lost(folder: str) -> str:
    rank, _ = _begin(folder, "hvdlite")
    _reduced()
    if rank == 1:
        os._exit(0)
    try:
        while True:
            _reduced()
    except distributed.DistBackendError as error:
        return str(error)


def test_a_rank_that_is_lost_is_named_on_the_others(tmp_path: Path) -> None:
    outcomes = process_ranks(3, _lost, str(tmp_path), server=TORCH)
    for rank in (0, 2):
        assert "rank 1" in outcomes[rank].result()


_CHECKS = """
import sys, time
import torch
assert torch.distributed.Backend.HVDLITE == "hvdlite"
assert not [name for name in sys.modules if name.partition(".")[0] == "hvdlite"]
from hvdlite_torch import register
register()  # again, without an effect
print(torch.distributed.Backend.default_device_backend_map["cpu"])
"""


def _default(**environ: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HVDLITE")} | environ
    return subprocess.run(
        [sys.executable, "-c", _CHECKS], env=environ, capture_output=True, check=True, text=True
    ).stdout.strip()


def test_torch_knows_the_back_end_and_imports_nothing_for_it() -> None:
    assert _default() == "gloo"
    assert _default(HVDLITE_TORCH_DEFAULT="1") == "hvdlite"


def test_what_torch_calls_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "Backend", None)
    hvdlite_torch.register()
    monkeypatch.setattr(distributed, "is_available", lambda: False)
    hvdlite_torch.register()

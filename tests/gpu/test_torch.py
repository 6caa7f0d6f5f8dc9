"""CUDA tensors of PyTorch: their streams, their memory, and the ranks' agreement about them."""

from __future__ import annotations

import copy
import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
import torch

import hvdlite.torch as hvd
from hvdlite.cuda.presence import KIND
from hvdlite.planes.nccl.launched import Launched
from hvdlite.session import current
from hvdlite.torch.optimizer.reduction import TensorReduction
from hvdlite.training import overlap
from tests.frontends.scenarios import Scenarios
from tests.gpu.machine.place import IS_MACHINE
from tests.gpu.torch_fake.ranks import held, run_on_gpu
from tests.harness import process_ranks
from tests.harness.forkserver import ForkServer
from tests.harness.patience import until
from tests.harness.scenarios import Report, joined
from tests.harness.scenarios import pytest_generate_tests as pytest_generate_tests

scenario = Scenarios(ranks=[2, 3])


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest, torch_ranks: ForkServer) -> Report:
    """The error of each scenario, by its name."""
    # There are two GPUs; and to load a kernel of PyTorch's later would wait for a stream that is held.
    environ = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "CUDA_MODULE_LOADING": "EAGER"}
    outcomes = process_ranks(request.param, run_on_gpu, __name__, (), environ=environ, server=torch_ranks)
    return joined([outcome.result() for outcome in outcomes])


def everyones(factor: float = 1.0) -> float:
    """The sum over all ranks of the rank plus one, times a factor."""
    return factor * hvd.size() * (hvd.size() + 1) / 2


@scenario
def what_waits_for_streams_when_it_is_first_used_is_used_before_one_is_held() -> None:
    """NCCL connects ranks, and CUDA loads kernels. Both wait for all streams of a GPU, held ones too."""
    for count in (5, 1000):
        mine = torch.full((count,), hvd.rank() + 1.0)
        assert hvd.allreduce(mine, op=hvd.Sum).tolist() == [everyones()] * count
        assert hvd.allgather(mine).sum().item() == everyones(count)
    means = hvd.grouped_allreduce([torch.full((4,), hvd.rank() + 1.0) for _ in range(8)])
    assert all(torch.allclose(each, torch.full((4,), everyones() / hvd.size())) for each in means)


@scenario
def a_collective_begins_after_what_its_stream_was_given_and_nobody_waits() -> None:
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        source, target, copied = torch.full((5,), hvd.rank() + 1.0), torch.zeros(5), torch.zeros(5)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            with held(stream):
                target.copy_(source)
                handle = hvd.allreduce_async_(target, op=hvd.Sum)
                result = hvd.synchronize(handle)  # while the stream has not even made the tensor
                assert result is target
                copied.copy_(result)
                again = hvd.allreduce_async(result, op=hvd.Sum)
                assert not hvd.poll(again)
            assert hvd.synchronize(again).tolist() == [everyones(hvd.size())] * 5
            assert copied.tolist() == [everyones()] * 5


@scenario
def a_result_is_kept_for_the_stream_that_reads_it() -> None:
    reading = torch.cuda.Stream()
    for _ in range(3):
        mine, copied = torch.full((4,), hvd.rank() + 1.0), torch.zeros(4 * hvd.size())
        handle = hvd.allgather_async(mine)  # whose result is allocated aside
        with held(reading):
            with torch.cuda.stream(reading):
                copied.copy_(hvd.synchronize(handle))
            junk = [torch.full((4 * hvd.size(),), -1.0) for _ in range(4)]  # takes what is free
        reading.synchronize()
        assert copied.view(-1, 4).tolist() == [[rank + 1.0] * 4 for rank in range(hvd.size())]
        del junk


@scenario
def a_result_whose_size_others_decide_takes_no_memory_that_a_stream_still_uses() -> None:
    rows = 123  # as no other scenario has
    mine, copied, busy = (
        torch.full((rows,), hvd.rank() + 1.0),
        torch.zeros(rows * hvd.size()),
        torch.cuda.current_stream(),
    )
    source = torch.full((rows * hvd.size(),), 7.0)
    with held(busy):
        copied.copy_(torch.empty(rows * hvd.size()).copy_(source))  # and its memory is free for this stream
        other = torch.cuda.Stream()
        with torch.cuda.stream(other):
            handle = hvd.allgather_async(mine)
            until(lambda: hvd.poll(handle))  # so that it runs in a thread of hvdlite's, where that stream is current
            gathered = hvd.synchronize(handle)
            other.synchronize()
    assert copied.tolist() == [7.0] * (rows * hvd.size())
    assert gathered.view(-1, rows).tolist() == [[rank + 1.0] * rows for rank in range(hvd.size())]


@scenario
def nor_any_of_the_streams_that_pytorch_gives_out_in_turns() -> None:
    rows = 321  # as no other scenario has
    mine, source = torch.full((rows,), hvd.rank() + 1.0), torch.full((rows * hvd.size(),), 7.0)
    streams = {stream.cuda_stream: stream for stream in (torch.cuda.Stream() for _ in range(64))}
    for stream in streams.values():
        copied = torch.zeros(rows * hvd.size())
        stream.wait_stream(torch.cuda.current_stream())
        with held(stream):
            with torch.cuda.stream(stream):
                copied.copy_(torch.empty(rows * hvd.size()).copy_(source))  # and its memory is free for this stream
            gathered = hvd.allgather(mine)
        stream.synchronize()
        assert copied.tolist() == [7.0] * (rows * hvd.size())
        assert gathered.view(-1, rows).tolist() == [[rank + 1.0] * rows for rank in range(hvd.size())]


@scenario
def no_thread_makes_a_context_on_a_gpu_that_the_rank_does_not_use() -> None:
    handle = hvd.allgather_async(torch.ones(4))
    until(lambda: hvd.poll(handle))  # so that it runs in a thread of hvdlite's, whose device is the first
    hvd.synchronize(handle)
    if IS_MACHINE:  # PyTorch itself has no such list
        return
    from tests.gpu.torch_fake.preload import devices_set

    assert devices_set == {torch.cuda.current_device()}


@scenario
def gradients_of_one_bucket_are_computed_in_several_streams() -> None:
    first, second = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))
    named = [("first", first), ("second", second)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first, second], lr=1.0), named, groups=[[first, second]])
    streams = [torch.cuda.Stream() for _ in named]
    sources = [torch.full((4,), hvd.rank() + 1.0 + number) for number in range(2)]
    losses = []
    for (_, parameter), stream, source in zip(named, streams, sources, strict=True):
        with torch.cuda.stream(stream):
            losses.append(_Copied.apply(parameter, source))
    with held(streams[1]):  # autograd begins with what was computed last
        torch.autograd.backward(losses, [torch.ones(4) for _ in losses])
        for _ in range(20):  # in which ranks would reduce what is not computed yet
            hvd.barrier()
    optimizer.synchronize()
    mean = everyones() / hvd.size()
    assert [first.grad.tolist(), second.grad.tolist()] == [[mean] * 4, [mean + 1.0] * 4]


class _Copied(torch.autograd.Function):
    """Ones, whose gradient is a copy of ``source`` in the order of the stream."""

    @staticmethod
    def forward(context: Any, parameter: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        context.source = source
        return torch.ones_like(parameter)

    @staticmethod
    def backward(context: Any, *_: torch.Tensor) -> Any:
        return torch.empty_like(context.source).copy_(context.source), None


@scenario
def parameters_of_the_cpu_and_of_a_gpu_have_one_optimizer() -> None:
    torch.manual_seed(5)
    below, above = torch.nn.Linear(3, 4, device="cpu"), torch.nn.Linear(4, 2)
    named = [*below.named_parameters("below"), *above.named_parameters("above")]
    for _, parameter in named:
        hvd.broadcast_(parameter.data, 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([each for _, each in named], lr=0.1), named)
    alone = copy.deepcopy((below, above))
    for step in range(5):
        optimizer.zero_grad()
        above(below(torch.full((1, 3), hvd.rank() + step + 1.0, device="cpu")).cuda()).sum().backward()
        optimizer.step()
        sums = [torch.zeros_like(each) for model in alone for each in model.parameters()]
        for rank in range(hvd.size()):
            outputs = alone[1](alone[0](torch.full((1, 3), rank + step + 1.0, device="cpu")).cuda())
            for total, each in zip(sums, torch.autograd.grad(outputs.sum(), _parameters(alone)), strict=True):
                total += each
        for parameter, total in zip(_parameters(alone), sums, strict=True):
            parameter.data -= 0.1 * total / hvd.size()
    for (_, trained), wanted in zip(named, _parameters(alone), strict=True):
        assert torch.allclose(trained, wanted, atol=1e-5)


def _parameters(models: Iterable[torch.nn.Module]) -> list[torch.nn.Parameter]:
    return [parameter for model in models for parameter in model.parameters()]


@scenario
def a_bucket_whose_last_gradients_come_in_two_threads_at_once_is_submitted_once() -> None:
    threads = _Meeting()
    parameters = [torch.nn.Parameter(torch.ones(4, device=device)) for device in ("cpu", "cuda")]
    named = [(each.device.type, each) for each in parameters]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), named, groups=[parameters])
    reducer = optimizer._reducer
    reducer._lock = threads
    (bucket,) = reducer._buckets
    bucket.waiting = _Waiting(bucket.waiting, threads)
    started = []

    def start(*args: Any) -> Any:
        started.append(args)
        threads.come("submits")
        return TensorReduction.start(reducer._reduction, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reducer._reduction, "start", start, raising=False)
        patch.setattr(overlap, "_burst_bytes", lambda: 0)  # so that each bucket that is ready is submitted at once
        sum((each * (hvd.rank() + 1.0)).sum().cpu() for each in parameters).backward()
        optimizer.synchronize()
    assert len(started) == 1
    assert [each.grad.tolist() for each in parameters] == [[everyones() / hvd.size()] * 4] * 2


class _Meeting:
    """A lock for two threads. Those that wait for it have come to submit."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._came: defaultdict[str, set[int]] = defaultdict(set)

    def come(self, purpose: str) -> None:
        """Waits until both threads have come."""
        self._came[purpose].add(threading.get_ident())
        until(lambda: len(self._came[purpose]) == 2)

    def __enter__(self) -> None:
        self._came["submits"].add(threading.get_ident())
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Waiting(set[Any]):
    """The gradients that a bucket waits for, of which two threads take the last ones at the same time."""

    def __init__(self, gradients: Iterable[Any], threads: _Meeting) -> None:
        super().__init__(gradients)
        self._threads = threads

    def discard(self, gradient: Any) -> None:
        super().discard(gradient)
        self._threads.come("counts")


@scenario
def a_stream_is_told_once_to_wait_for_several_results_of_a_launch() -> None:
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(8)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
    told: list[tuple[int, Launched]] = []
    with pytest.MonkeyPatch.context() as patch:
        hold_back = Launched.hold_back
        patch.setattr(
            Launched, "hold_back", lambda launch, stream: told.append((stream, launch)) or hold_back(launch, stream)
        )
        with torch.cuda.stream(torch.cuda.Stream()):
            hvd.synchronize(hvd.grouped_allreduce_async([torch.ones(3) for _ in range(8)]))
        assert len(set(told)) == len(told) == 1
        sum(each.sum() for each in parameters).backward()
        optimizer.step()
        assert len(set(told)) == len(told) < 8
    assert all(each.tolist() == [0.0] * 3 for each in parameters)


@scenario
def a_tensor_that_is_freed_is_kept_until_it_was_sent() -> None:
    source = torch.full((1000,), hvd.rank() + 1.0)
    with held(torch.cuda.current_stream()):
        handle = hvd.allreduce_async(torch.empty(1000).copy_(source), op=hvd.Sum)
    junk = torch.full((1000,), -1.0)
    assert hvd.synchronize(handle).tolist() == [everyones()] * 1000
    del junk


@scenario
def a_tensor_of_the_cpu_on_one_rank_is_a_mismatch_on_all() -> None:
    device = "cpu" if hvd.rank() == 0 else "cuda"
    with pytest.raises(hvd.Mismatch, match=r"(?s)cpu.*cuda|cuda.*cpu"):
        hvd.allreduce(torch.ones(3, device=device), name="mixed")
    assert hvd.allreduce(torch.ones(3)).tolist() == [1.0] * 3


@scenario
def tensors_of_the_cpu_and_of_gpus_in_turns() -> None:
    handles = []
    for number in range(20):
        device = "cpu" if number % 3 == 0 else "cuda"
        handles.append(hvd.allreduce_async(torch.full((7,), float(number), device=device), op=hvd.Sum))
    for number, handle in enumerate(handles):
        result = hvd.synchronize(handle)
        assert result.device.type == ("cpu" if number % 3 == 0 else "cuda")
        assert result.tolist() == [float(number * hvd.size())] * 7


@scenario
def threads_have_streams_of_their_own() -> None:
    failures: list[BaseException] = []
    device = torch.cuda.current_device()

    def work(number: int) -> None:
        try:
            torch.cuda.set_device(device)  # each thread has a current one
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for step in range(10):
                    mine = torch.full((9,), float(step), device="cuda")
                    total = hvd.allreduce(mine, op=hvd.Sum, name=f"{number}.{step}")
                    assert total.tolist() == [float(step * hvd.size())] * 9
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@scenario
def what_gpus_lack_is_refused_where_it_is_submitted() -> None:
    for tensor, options in ((torch.ones(3, dtype=torch.int16), {}), (torch.ones(3), {"op": hvd.Adasum})):
        with pytest.raises(ValueError, match=r"pass .*(tensor.cpu\(\)|a copy in CPU memory)"):
            hvd.allreduce(tensor, **options)
    with pytest.raises(ValueError, match="takes CPU and CUDA tensors"):
        hvd.allreduce(torch.ones(3, device="meta"))
    assert hvd.allreduce(torch.ones(3)).tolist() == [1.0] * 3


@scenario
def a_step_with_a_gradient_scaler() -> None:
    torch.manual_seed(5)
    model = torch.nn.Linear(3, 1)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    with pytest.MonkeyPatch.context() as patch:  # PyTorch's own scaler is for builds with CUDA
        patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
        scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    before = model.weight.detach().clone()
    scaler.scale(model(torch.full((1, 3), hvd.rank() + 1.0)).sum()).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()
    mean = everyones() / hvd.size()
    assert torch.allclose(before - model.weight, torch.full((1, 3), 0.1 * mean), atol=1e-6)


@scenario
def the_state_of_an_optimizer_is_made_on_the_gpu_of_each_rank() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if hvd.rank() == 0:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):  # whose order is not that of any other
        hvd.broadcast_optimizer_state(optimizer, 0)
        momentum = [state["momentum_buffer"] for state in optimizer.state.values()]
        assert [each.tolist() for each in momentum] == [[[2.0] * 3], [2.0]]
    assert all(each.device.index == torch.cuda.current_device() for each in momentum)


@scenario
def a_compiled_step() -> None:
    torch.manual_seed(5)
    model = torch.nn.Linear(3, 1)
    hvd.broadcast_parameters(model.state_dict(), 0)

    def loss(inputs: torch.Tensor) -> torch.Tensor:
        return hvd.allreduce(model(inputs).sum(), name="loss", op=hvd.Sum) * 2

    compiled = torch.compile(loss, backend="aot_eager")
    for step in range(3):
        inputs = torch.full((2, 3), hvd.rank() + step + 1.0)
        found, wanted = compiled(inputs), loss(inputs)
        assert torch.equal(found, wanted)
        gradients = []
        for each in (found, wanted):
            model.zero_grad()
            each.backward()
            gradients.append(model.weight.grad.clone())
        assert torch.equal(*gradients)


@scenario
def the_plane_is_that_of_nccl() -> None:
    assert current().everyone.statistics().planes[KIND] == "nccl"


def test_torch(report: Report, name: str) -> None:
    assert report[name] == ""

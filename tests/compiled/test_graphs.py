"""Collectives inside the graphs of `torch.compile`: every blocking form, its gradient, its errors and its order."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch

import hvdlite.torch as hvd
from hvdlite.ops import global_process_set as everyone
from hvdlite.ops.table import FORMS
from hvdlite.torch.collectives.compiled import _with_graph
from hvdlite.torch.collectives.operators import HAS_OPERATORS
from tests.compiled.outcomes import shown
from tests.compiled.tracing import probe
from tests.frontends.scenarios import Scenarios, run
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH

Function = Callable[[torch.Tensor], Any]
scenario = Scenarios(ranks=[2])

pytestmark = pytest.mark.skipif(not HAS_OPERATORS, reason="needs torch 2.13, before which graphs end at calls")


def passed_on(x: torch.Tensor, *, in_place: bool = False, rank: int = 0) -> torch.Tensor:
    if rank == 0:
        return hvd.send(x, 1)
    return (hvd.recv_ if in_place else hvd.recv)(x.clone(), 0)


def forms() -> dict[str, Function]:
    """Every form that graphs take, on two ranks."""
    rank = hvd.rank()
    return {
        "allgather": lambda x: hvd.allgather(x[: 1 + rank]) * 2,
        "allreduce": lambda x: hvd.allreduce(x * 2, op=hvd.Sum, prescale_factor=0.5, name="named") + 1,
        "allreduce_": lambda x: hvd.allreduce_(x + rank) + 1,
        "alltoall": lambda x: hvd.alltoall(x) * 2,
        "alltoall with splits": lambda x: hvd.alltoall(x, splits=[2, 1] if rank else [1, 3]),
        "barrier": lambda x: (hvd.barrier(), x + 1),
        "broadcast": lambda x: hvd.broadcast(x + rank, 1),
        "broadcast_": lambda x: hvd.broadcast_(x + rank, 1),
        "gather": lambda x: hvd.gather(x, 0) * 2,
        "grouped_allreduce": lambda x: hvd.grouped_allreduce([x, x[:2] * 3], name="group"),
        "grouped_allreduce_": lambda x: hvd.grouped_allreduce_([x + 0, x[:2] * 3]),
        "grouped_reducescatter": lambda x: hvd.grouped_reducescatter([x, x + 1]),
        "recv": lambda x: passed_on(x, rank=rank),
        "recv_": lambda x: passed_on(x, in_place=True, rank=rank),
        "reduce": lambda x: hvd.reduce(x, 0),
        "reducescatter": lambda x: hvd.reducescatter(x[:3], op=hvd.Sum),
        "scatter": lambda x: hvd.scatter(x, 0) * 2,
        "send": lambda x: passed_on(x, rank=rank),
    }


def vector() -> torch.Tensor:
    return torch.arange(1.0, 5.0) + hvd.rank()


def gradient(function: Function) -> Function:
    """The gradient of the input, where the results are weighted."""

    def run(x: torch.Tensor) -> torch.Tensor | None:
        leaf = x.clone().requires_grad_()
        results = function(leaf)
        results = results if isinstance(results, (list, tuple)) else [results]
        of_floats = [each for each in results if isinstance(each, torch.Tensor) and each.requires_grad]
        if of_floats:
            sum((each * torch.arange(1.0, 1.0 + each.numel()).view(each.shape)).sum() for each in of_floats).backward()
        return leaf.grad

    return run


def compiled(function: Function, **options: Any) -> Function:
    torch._dynamo.reset()
    return torch.compile(function, **{"backend": "aot_eager", "fullgraph": True, **options})


DECIDED_BY_OTHERS = ("allgather", "alltoall", "alltoall with splits", "gather", "scatter")
"""Forms that graphs take where no gradient goes through them."""


def differing(own: Callable[[str, Function], Function], only: Collection[str] = ()) -> list[str]:
    """The forms, ``only`` of these, whose results or input gradients are others with what ``own`` makes of them."""
    wrong = []
    for name, function in forms().items():
        if only and name not in only:
            continue
        for act in (function, gradient(function)):
            if act is function or not name.endswith("_"):  # what is in place has no gradient
                expected, mine = shown(act(vector())), own(name, function)
                found = shown((mine if act is function else gradient(mine))(vector()))
                if found != expected:
                    wrong.append(f"{name}: {found}, not {expected}")
    return wrong


@scenario
def every_form_and_its_gradient_are_in_one_graph() -> None:
    with probe() as traced:
        assert differing(lambda name, function: compiled(function, fullgraph=name not in DECIDED_BY_OTHERS)) == []
    assert not traced.ours


@scenario
def forms_whose_rows_others_decide_are_in_one_graph() -> None:
    wrong = []
    for name in DECIDED_BY_OTHERS:
        function = forms()[name]
        with torch.no_grad():
            if shown(compiled(function)(vector())) != shown(function(vector())):
                wrong.append(name)
    assert wrong == []


@scenario
def a_rank_that_compiles_meets_one_that_does_not() -> None:
    is_compiling = hvd.rank() == 0
    some = ("allgather", "allreduce_", "broadcast", "grouped_allreduce", "recv", "send")
    assert differing(lambda _, function: compiled(function, fullgraph=False) if is_compiling else function, some) == []


@scenario
def shapes_may_be_dynamic() -> None:
    def function(x: torch.Tensor, factor: float, root: int) -> Any:
        mean = hvd.allreduce(x, prescale_factor=factor)
        return mean, hvd.reducescatter(x), hvd.broadcast(mean * 2, root)

    in_graph = compiled(function, dynamic=True)
    for rows in (2, 4, 6):
        x = torch.arange(3.0 * rows).view(rows, 3) * (1 + hvd.rank())
        assert shown(in_graph(x, 1.5 / rows, rows % 2)) == shown(function(x, 1.5 / rows, rows % 2))


@scenario
def an_error_leaves_the_graph_and_the_session_lives() -> None:
    disagreeing = compiled(lambda x: hvd.allreduce(x, name="unequal") + 1)
    for _ in range(2):
        with pytest.raises(hvd.Mismatch, match="ranks disagree about the shape of tensor 'unequal'"):
            disagreeing(torch.ones(2 + hvd.rank()))
    with pytest.raises(ValueError, match="root_rank 7 is not a rank of this job"):
        compiled(lambda x: hvd.broadcast(x, 7))(vector())
    assert shown(compiled(lambda x: hvd.allreduce(x))(vector())) == shown(torch.arange(1.0, 5.0) + 0.5)


@scenario
def an_integer_or_a_scalar() -> None:
    for x in (torch.tensor(3 + hvd.rank()), torch.arange(3), torch.tensor(True), torch.ones(0, 2)):
        assert shown(compiled(lambda x: hvd.allreduce(x, op=hvd.Sum))(x)) == shown(hvd.allreduce(x, op=hvd.Sum))


@scenario
def a_parameter_is_reduced_in_place() -> None:
    parameter = torch.nn.Parameter(vector())
    compiled(lambda: hvd.allreduce_(parameter))()  # type: ignore[arg-type, misc, call-arg]
    assert shown(parameter.detach()) == shown(torch.arange(1.0, 5.0) + 0.5)
    assert parameter.requires_grad
    assert parameter.grad_fn is None


@scenario
def what_ends_a_graph_says_so() -> None:
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    own = sets[hvd.rank()]
    breaking: dict[str, Function] = {
        "asynchronous": lambda x: hvd.synchronize(hvd.allreduce_async(x)),
        "a process set": lambda x: hvd.allreduce(x, process_set=own),
        "compression": lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16),
        "an object": lambda x: hvd.broadcast_object(1) * x,
    }
    for name, function in breaking.items():
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r"see its docs/pytorch.md"):
            compiled(function)(vector())
        assert shown(compiled(function, fullgraph=False)(vector())) == shown(function(vector())), name
    for each in sets:
        hvd.remove_process_set(each)


def trained(compile_step: bool, compile_model: bool, options: dict[str, Any]) -> list[torch.Tensor]:
    """The parameters after three steps."""
    torch.manual_seed(5)
    model: Any = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    )
    model = hvd.convert_sync_batchnorm(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
    forward = torch.compile(model, backend="aot_eager") if compile_model else model
    data = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(hvd.rank()))

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = forward(x).square().mean()
        loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        return hvd.allreduce(loss.detach())

    run = torch.compile(step, backend="aot_eager") if compile_step else step
    losses = [run(x) for x in data]
    return [parameter.detach().clone() for parameter in model.parameters()] + losses


@scenario
def a_training_step_is_the_same() -> None:
    expected = trained(False, False, {})
    for compile_step, compile_model, autograd in ((True, False, False), (False, True, False), (True, True, True)):
        torch._dynamo.reset()
        with torch._dynamo.config.patch(compiled_autograd=autograd), probe() as traced:
            found = trained(compile_step, compile_model, {"groups": 2} if autograd else {})
        assert not traced.ours
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_graphs(reports: dict[str, str], name: str) -> None:
    assert reports[name] == ""


@pytest.fixture(scope="module")
def reports() -> dict[str, str]:
    """The error of each scenario on a rank, by its name."""
    found = [outcome.result() for outcome in process_ranks(2, run, __name__, server=TORCH)]
    return {name: "\n".join(each[name] for each in found if each[name]) for name in found[0]}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "reports" in metafunc.fixturenames:
        metafunc.parametrize("name", scenario.names)


def in_any_order(x: torch.Tensor) -> torch.Tensor:
    """Inductor of torch 2.13 would run these collectives as 5, 4, 2, 1, 3 to need less memory, if it might."""
    large = x.repeat(1000, 1)
    first = hvd.allreduce(large + 1)
    second = hvd.allreduce(x + 1)
    total = first.sum() + hvd.allreduce(large).sum()
    hvd.allreduce(x + 7)  # nobody needs it here
    equal = hvd.allreduce(x) * hvd.allreduce(x)
    return total + second.sum() + (hvd.allreduce(x.sum()) * equal).sum()


BACKENDS: dict[str, dict[str, Any]] = {
    "aot_eager": {"backend": "aot_eager"},
    "inductor": {"backend": "inductor"},
    "reduce-overhead": {"mode": "reduce-overhead", "backend": "inductor"},
}


def in_order(backends: Collection[str]) -> None:
    """Rank 0 has a graph, and rank 1 has none, so it runs them as they are written."""
    from torch._inductor import config

    hvd.init()
    with config.patch({"cpp.vec_isa_ok": False}):  # or g++ first tries which vectors there are, for most of the time
        for backend in backends:
            own = compiled(in_any_order, **BACKENDS[backend]) if hvd.rank() == 0 else in_any_order
            with torch.no_grad():
                assert torch.allclose(own(vector()), in_any_order(vector()), rtol=1e-5), backend
            assert torch.allclose(gradient(own)(vector()), gradient(in_any_order)(vector()), rtol=1e-5), backend
    hvd.shutdown()


@pytest.mark.parametrize("backends", [["aot_eager"], ["inductor", "reduce-overhead"]], ids=["aot_eager", "inductor"])
def test_collectives_stay_in_order_none_is_dropped_and_equal_ones_stay_two(backends: list[str], tmp_path: Path) -> None:
    if "inductor" in backends and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler; install g++")
    if "inductor" in backends and " " in torch.__file__:
        pytest.skip("inductor needs torch in a folder without a space in its path")
    environ = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    for outcome in process_ranks(2, in_order, backends, server=TORCH, environ=environ):
        outcome.result()


def in_sessions_of_other_sizes() -> list[str]:
    """A graph in a session of two ranks, after it, and in one of this rank alone."""
    function = compiled(lambda x: hvd.reducescatter(x, op=hvd.Sum), fullgraph=False)
    found = []
    for act in (hvd.init, hvd.shutdown, leave_the_job, hvd.init):
        act()
        try:
            found.append(shown(function(torch.ones(4))))
        except hvd.HorovodInternalError as error:
            found.append(str(error).partition(";")[0])
    hvd.shutdown()
    return found


def leave_the_job() -> None:
    for key in [key for key in os.environ if key.startswith("HVDLITE_")]:
        del os.environ[key]


def test_a_graph_is_of_a_session() -> None:
    for outcome in process_ranks(2, in_sessions_of_other_sizes, server=TORCH):
        found = outcome.result()
        assert found[0] == "torch.float32[2.0, 2.0]"
        assert found[1] == found[2]
        assert "init" in found[1]
        assert found[3] == "torch.float32[1.0, 1.0, 1.0, 1.0]"


def test_a_form_with_a_parameter_that_no_operator_takes_stays_out_of_graphs() -> None:
    def scaled(self: Any, tensor: torch.Tensor, by: int, name: str = "x", process_set: Any = everyone) -> torch.Tensor:
        return tensor * by

    form = _with_graph(scaled, FORMS["allgather"])
    compiled = torch.compile(lambda tensor: form(None, tensor, by=3), backend="eager")
    assert compiled(torch.ones(2)).tolist() == [3.0, 3.0]

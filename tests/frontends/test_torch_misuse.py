"""Training that would go wrong in silence is refused: no session, no synchronize, two wrappers, other shapes."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch
from torch import nn

import hvdlite
import hvdlite.torch as hvd
from tests.frontends.scenarios import Report, Scenarios, assert_close
from tests.frontends.toys import own_loss, sgd, two_layers
from tests.harness.patience import PATIENCE_S

scenario = Scenarios(ranks=[1, 2, 3])


@scenario
def a_step_without_reduction_is_refused_in_skip_synchronize() -> None:
    model = two_layers()
    optimizer = sgd(model, backward_passes_per_step=2)
    own_loss(model).backward()
    with pytest.raises(AssertionError, match="the gradients that synchronize"), optimizer.skip_synchronize():
        optimizer.step()
    for closure in (lambda: own_loss(model), lambda: own_loss(model).backward()):
        with pytest.raises(AssertionError, match=r"the closure calls it after backward"), optimizer.skip_synchronize():
            optimizer.step(closure)
    optimizer.synchronize()
    with pytest.raises(AssertionError, match=r"the closure calls it after backward"), optimizer.skip_synchronize():
        optimizer.step(lambda: own_loss(model).backward())
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step(lambda: own_loss(model))
    with pytest.raises(AssertionError, match="the gradients that synchronize"), optimizer.skip_synchronize():
        optimizer.step()


@scenario
def an_optimizer_is_wrapped_once_at_a_time() -> None:
    bare = torch.optim.SGD(two_layers().parameters(), lr=0.1)
    first = hvd.DistributedOptimizer(bare)
    with pytest.raises(ValueError, match="wrapped in a DistributedOptimizer already"):
        hvd.DistributedOptimizer(bare)
    del first
    hvd.DistributedOptimizer(bare)


@scenario
def operations_that_make_no_step_are_refused() -> None:
    for op in (hvd.Min, hvd.Max, hvd.Product):
        with pytest.raises(ValueError, match="use hvd.Average, hvd.Sum or hvd.Adasum"):
            sgd(two_layers(), op=op)


@scenario
def a_removed_process_set_is_not_trained_in_alone() -> None:
    if hvd.size() < 3:
        return
    pair = hvd.add_process_set([0, 1])
    model = two_layers()
    optimizer = sgd(model, process_set=pair)
    layer = hvd.SyncBatchNorm(3, process_set=pair)
    hvd.remove_process_set(pair)
    if hvd.rank() < 2:
        with pytest.raises(ValueError, match="is not registered"):
            own_loss(model).backward()
        with pytest.raises(ValueError, match="is not registered"):
            optimizer.step()
    with pytest.raises(ValueError, match="is not registered"):
        layer(torch.randn(4, 3))


@scenario
def groups_with_integers_have_a_gradient_for_the_rest() -> None:
    for mask in (torch.tensor([True, False]), torch.tensor([1, 2])):
        weight = torch.ones(2, requires_grad=True)
        gathered, _ = hvd.grouped_allgather([weight, mask])
        gathered.sum().backward()
        assert_close(weight.grad, torch.ones(2))


@scenario
def groups_may_be_iterators() -> None:
    weights = {"a": torch.ones(2, requires_grad=True), "b": torch.ones(3, requires_grad=True)}
    sum(result.sum() for result in hvd.grouped_allreduce(weights.values(), op=hvd.Average)).backward()
    assert_close(weights["b"].grad, torch.ones(3))


@scenario
def a_layer_in_two_places_stays_one_layer_when_it_is_converted() -> None:
    norm = nn.BatchNorm1d(3)
    model = nn.ModuleDict({"a": norm, "b": norm, "c": nn.Sequential(norm)})
    converted = hvd.convert_sync_batchnorm(model)
    assert type(converted["a"]) is hvd.SyncBatchNorm
    assert converted["a"] is converted["b"] is converted["c"][0]
    with pytest.raises(ValueError, match="expected 3 features in dimension 1, got 1"):
        converted["a"](torch.randn(4, 1))


@scenario
def sparse_tensors_of_other_extents_are_a_mismatch_on_all_ranks() -> None:
    if hvd.size() == 1:
        return
    rows = 10 if hvd.rank() == 0 else 8
    tensor = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1), (rows,), check_invariants=True)
    with pytest.raises(hvd.Mismatch, match=r"the shape of sparse tensor 'table': rank 0 has \[10\]; rank 1 has \[8\]"):
        hvd.sparse_allreduce_async(tensor, "table")()


@scenario
def a_forked_child_waits_for_no_thread_that_was_submitting() -> None:
    optimizer = sgd(two_layers())
    is_submitting, may_end = threading.Event(), threading.Event()

    def submit() -> None:
        with optimizer._reducer._lock:
            is_submitting.set()
            may_end.wait()

    thread = threading.Thread(target=submit)
    thread.start()
    is_submitting.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE_S))
        optimizer.zero_grad()
        os._exit(0)
    may_end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


class _Described(torch.utils.data.Dataset[str]):
    """Items are what a worker that loads them knows of its rank, and what it hears of a collective."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> str:
        try:
            hvd.allreduce(torch.ones(1))
        except hvd.HorovodInternalError as error:
            return f"{hvd.rank()} of {hvd.size()}, {error}"
        return ""


@scenario
def workers_of_a_loader_know_the_rank_and_run_no_collective() -> None:
    loader = torch.utils.data.DataLoader(_Described(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    for told in loader:
        assert told.startswith(f"{hvd.rank()} of {hvd.size()}, process ")
        assert f"was forked from rank {hvd.rank()}, and is no rank itself" in told


def test_torch_misuse(report: Report, name: str) -> None:
    assert report[name] == ""


def test_nothing_is_trained_alone_after_shutdown() -> None:
    hvd.init()
    model = two_layers()
    optimizer, layer = sgd(model), hvd.SyncBatchNorm(3)
    hvd.shutdown()
    for use in (lambda: own_loss_alone(model).backward(), optimizer.step, lambda: layer(torch.randn(4, 3))):
        with pytest.raises(hvd.HorovodInternalError, match="has not been initialized again after shutdown"):
            use()


def own_loss_alone(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(1, 3)).sum()


def test_the_names_that_only_pytorch_has_are_said_to_be_there() -> None:
    assert {*hvd.__all__} - {*hvdlite.__all__} == {*hvdlite._ONLY_IN_TORCH.split()}
    with pytest.raises(AttributeError, match=r"no attribute 'DistributedOptimizer'; hvdlite\.torch has it$"):
        hvdlite.DistributedOptimizer  # type: ignore[attr-defined] # noqa: B018

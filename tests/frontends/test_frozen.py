"""A front end of tensors that cannot be written in place needs an adapter, and what is particular to its framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from tests.frontends import frozen
from tests.frontends.frozen import Frozen, Variable
from tests.frontends.scenarios import Report, Scenarios

scenario = Scenarios(ranks=(1, 2, 3))


def _same(tensor: Any, expected: Any, dtype: Any = np.float32) -> bool:
    return type(tensor) is Frozen and tensor.dtype == dtype and np.array_equal(tensor.numpy(), expected)


def _of(rank: int, *shape: int) -> Any:
    return np.full(shape, rank + 1, np.float32)


@scenario
def every_collective_gives_frozen_tensors() -> None:
    ops, rank, size = frozen.collectives, hvd.rank(), hvd.size()
    each = [_of(other, size, 2) for other in range(size)]
    own, total = Frozen(each[rank]), sum(each)
    assert _same(ops.allreduce(own, op=hvd.Sum), total)
    assert _same(hvd.synchronize(ops.allreduce_async(own, op=hvd.Sum)), total)
    assert all(_same(found, total) for found in ops.grouped_allreduce([own, own], op=hvd.Sum))
    assert _same(ops.allgather(own), np.concatenate(each))
    assert [_same(found, np.concatenate(each)) for found in ops.grouped_allgather([own, own])] == [True] * 2
    assert _same(ops.broadcast(own, size - 1), each[-1])
    assert _same(ops.alltoall(own), np.concatenate([other[rank : rank + 1] for other in each]))
    received, rows = ops.alltoall(own, splits=[1] * size)
    assert _same(received, np.concatenate([other[rank : rank + 1] for other in each]))
    assert _same(rows, [1] * size, np.int32)
    assert _same(ops.reducescatter(own, op=hvd.Sum), total[:1])
    assert [_same(found, total[:1]) for found in ops.grouped_reducescatter([own, own], op=hvd.Sum)] == [True] * 2
    assert _same(ops.reduce(own, 0, op=hvd.Sum), total if rank == 0 else total[:0])
    assert _same(ops.gather(own, 0), np.concatenate(each) if rank == 0 else each[0][:0])
    assert _same(ops.scatter(own, 0), each[0][:1])
    if size > 1 and rank < 2:
        if rank == 0:
            ops.send(own, 1)
        else:
            assert _same(ops.recv(own, 0), each[0])
    assert np.array_equal(own.numpy(), each[rank])  # nothing was written there


@scenario
def numbers_come_back_as_numbers() -> None:
    ops, size = frozen.collectives, hvd.size()
    total = ops.allreduce(2.5, op=hvd.Sum)  # type: ignore[type-var]
    assert (type(total), total) == (float, 2.5 * size)
    assert hvd.synchronize(ops.allreduce_async(3, op=hvd.Sum)) == 3 * size  # type: ignore[type-var]


@scenario
def forms_in_place_are_refused() -> None:
    own = Frozen(_of(0, 2))
    for form in (frozen.collectives.allreduce_, frozen.collectives.allreduce_async_):
        with pytest.raises(ValueError, match="cannot be written in place; use the form without _"):
            form(own, name="refused")
    with pytest.raises(ValueError, match="expected a frozen tensor, got ndarray"):
        frozen.collectives.allreduce(np.ones(2))


@scenario
def a_tape_reduces_its_gradients() -> None:
    rank, size = hvd.rank(), hvd.size()
    weight, bias = Variable(np.zeros((2, 2), np.float32)), Variable(np.zeros(2, np.float32))
    pairs = [("weight", weight), ("bias", bias)]
    mean = sum(range(1, size + 1)) / size
    for options in ({}, {"compression": frozen.Half}, {"groups": 1}, {"groups": [[bias, weight]]}):
        tape = frozen.DistributedTape(pairs, **options)
        for _ in range(2):
            reduced = tape.reduce({weight: Frozen(_of(rank, 2, 2)), bias: Frozen(_of(rank, 2))})
            assert _same(reduced[weight], np.full((2, 2), mean, np.float32))
            assert _same(reduced[bias], np.full(2, mean, np.float32))
    with pytest.raises(ValueError, match="names more than one parameter weight"):
        frozen.DistributedTape([("weight", weight), ("weight", bias)])
    with pytest.raises(ValueError, match="groups has parameter 'bias' more than once"):
        frozen.DistributedTape(pairs, groups=[[bias, bias]])


@scenario
def gradients_are_reduced_as_they_come() -> None:
    rank, size = hvd.rank(), hvd.size()
    first, last = Variable(np.zeros(3, np.float32)), Variable(np.zeros(1 << 10, np.float32))
    optimizer = frozen.DistributedOptimizer([("first", first), ("last", last)], passes=2)
    total = np.float32(sum(range(1, size + 1)))
    for step in range(1, 4):
        for _ in range(2):
            optimizer.computed(last, _of(rank, 1 << 10))
        if size > 1:
            assert optimizer.overlap.is_reducing  # before the other gradient has come
        if step != 2 or rank == 0:  # a rank without a gradient takes part with zeros
            for _ in range(2):
                optimizer.computed(first, _of(rank, 3))
        optimizer.step()
    missed = 2 * sum(range(2, size + 1)) if size > 1 else 0
    assert np.array_equal(last.value.numpy(), np.full(1 << 10, -6 * total, np.float32))
    assert np.array_equal(first.value.numpy(), np.full(3, -6 * total + missed, np.float32))
    optimizer.computed(first, _of(rank, 3))
    optimizer.computed(first, _of(rank, 3))
    with pytest.raises(AssertionError, match="computed more than backward_passes_per_step = 2 times"):
        optimizer.computed(first, _of(rank, 3))
    optimizer.gradients[first].current = Frozen(_of(7, 3))
    if size > 1:
        with pytest.raises(AssertionError, match=r"'gradient.first' was changed while ranks were reducing it"):
            optimizer.step()


@scenario
def variables_and_state_are_those_of_the_root() -> None:
    rank, root = hvd.rank(), hvd.size() - 1
    variables = {"a": Variable(_of(rank, 2)), "b": Variable(_of(rank, 0, 3)), "c": None}
    frozen.broadcast_variables(variables, root)
    assert np.array_equal(variables["a"].value.numpy(), _of(root, 2))
    state = {"lr": 0.1 * (rank + 1), "slots": [Variable(_of(rank, 2, 2))], "kept": "root" if rank == root else "other"}
    found = frozen.broadcast_anything(state, root)
    assert (found["lr"], found["kept"]) == (0.1 * (root + 1), "root")
    assert np.array_equal(found["slots"][0].value.numpy(), _of(root, 2, 2))
    with pytest.raises(ValueError, match="'a' is a ndarray"):
        frozen.broadcast_variables({"a": np.ones(2)}, root)


def test_frozen(report: Report, name: str) -> None:
    assert report[name] == ""

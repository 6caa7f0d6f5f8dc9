"""Collectives of JAX arrays and trees, outside of `jax.jit` and inside."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hvdlite.jax as hvd
from tests.harness.scenarios import Report, Scenarios

scenario = Scenarios(ranks=(1, 2, 3))


def _tree(rank: int) -> Any:
    return {
        "kernel": jnp.full((2, 3), rank + 1.0),
        "half": [jnp.full(5, rank, jnp.bfloat16), jnp.full((), rank, jnp.float16)],
        "count": (jnp.arange(4) + rank, jnp.zeros((0, 2))),
    }


def _sum_of_trees() -> Any:
    return jax.tree.map(lambda *leaves: sum(leaves), *[_tree(rank) for rank in range(hvd.size())])


def _assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(one, jax.Array)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(np.asarray(one, np.float64), np.asarray(other, np.float64), rtol=1e-6)


@scenario
def a_tree_is_reduced_in_one_call_inside_and_outside_of_jit() -> None:
    for reduce in (hvd.allreduce, jax.jit(hvd.allreduce, static_argnames="op")):
        _assert_same(reduce(_tree(hvd.rank()), op=hvd.Sum), _sum_of_trees())
    mean = jax.jit(hvd.allreduce)({"a": jnp.float32(hvd.rank())})["a"]
    assert float(mean) == (hvd.size() - 1) / 2
    assert hvd.allreduce({}) == jax.jit(hvd.allreduce)({}) == {}


@scenario
def scale_factors_and_compression_do_what_they_say() -> None:
    tree = {"wide": jnp.full(3, 1 + 2.0**-12), "whole": jnp.arange(3)}
    expected = {"wide": jnp.full(3, 3.0 * hvd.size()), "whole": 3 * hvd.size() * jnp.arange(3)}

    def reduced(tree: Any) -> Any:
        return hvd.allreduce(
            tree, op=hvd.Sum, compression=hvd.Compression.bf16, prescale_factor=1.5, postscale_factor=2.0
        )

    _assert_same(jax.jit(reduced)(tree), reduced(tree))
    _assert_same(reduced({"wide": tree["wide"]}), {"wide": expected["wide"]})  # the bits beyond bfloat16 are gone


@scenario
def numbers_and_elements_of_64_bits_come_back_as_they_went() -> None:
    size = hvd.size()
    found = hvd.allreduce({"loss": 0.5, "steps": 3, "wide": np.full(2, 2.0**-40 + 1)}, op=hvd.Sum)
    assert (found["loss"], found["steps"]) == (0.5 * size, 3 * size)
    assert found["wide"].dtype == np.float64
    assert found["wide"].tolist() == [(2.0**-40 + 1) * size] * 2


@scenario
def derivatives_are_those_of_the_whole_job() -> None:
    rank, size = hvd.rank(), hvd.size()
    own = jnp.arange(3.0) + rank
    total = sum(np.arange(3.0) + other for other in range(size))

    def square(collective: Any) -> Any:
        return jax.grad(lambda x: (collective(x) ** 2).sum())

    for wrap in (jax.jit, lambda function: function):
        gradient = wrap(square(lambda x: hvd.allreduce(x, op=hvd.Sum)))(own)
        np.testing.assert_allclose(gradient, 2 * size * total, rtol=1e-6)
        gradient = wrap(square(lambda x: hvd.allreduce(x, name="mean")))(own)
        np.testing.assert_allclose(gradient, 2 * total / size, rtol=1e-6)
        gradient = wrap(square(lambda x: hvd.allgather(x)))(own)
        np.testing.assert_allclose(gradient, 2 * own, rtol=1e-6)
        gradient = wrap(square(lambda x: hvd.broadcast(x, size - 1)))(own)
        np.testing.assert_allclose(gradient, 2 * own if rank == size - 1 else 0 * own, rtol=1e-6)


@scenario
def derivatives_of_derivatives_go_backwards() -> None:
    rank, size = hvd.rank(), hvd.size()
    own = jnp.arange(3.0) + rank
    total = sum(np.arange(3.0) + other for other in range(size))

    def cube(x: Any) -> Any:
        return (hvd.allreduce(x, op=hvd.Sum) ** 3).sum()

    second = jax.grad(lambda x: jax.grad(cube)(x).sum())
    for wrap in (jax.jit, lambda function: function):
        np.testing.assert_allclose(wrap(second)(own), 6 * size**2 * total, rtol=1e-6)
        for transformed, kind, sentence in (
            (jax.jacfwd(cube), TypeError, "can't apply forward-mode autodiff"),
            (jax.hessian(cube), TypeError, "can't apply forward-mode autodiff"),
            (jax.jacrev(hvd.allreduce), ValueError, "Cannot `vmap` ordered IO callback"),
            (jax.vmap(hvd.allreduce), ValueError, "Cannot `vmap` ordered IO callback"),
            (jax.grad(jax.checkpoint(cube)), NotImplementedError, "Effects not supported in partial-eval"),
        ):
            with pytest.raises(kind, match=sentence):
                wrap(transformed)(own)


@scenario
def an_invalid_argument_is_known_after_a_compiled_function() -> None:
    logged: list[logging.LogRecord] = []
    seen = logging.Handler()
    seen.emit = logged.append  # type: ignore[method-assign]
    jaxs = logging.getLogger("jax")
    jaxs.addHandler(seen)
    try:
        with pytest.raises(jax.errors.JaxRuntimeError, match="root_rank 7 is not a rank of this job"):
            jax.block_until_ready(jax.jit(lambda x: hvd.broadcast(x, 7))(jnp.ones(2)))
    finally:
        jaxs.removeHandler(seen)
    assert isinstance(hvd.last_error(), ValueError)
    assert str(hvd.last_error()).startswith("root_rank 7 is not a rank of this job")
    assert logged == []  # what is raised is not printed besides


@scenario
def whole_numbers_beside_floats_have_no_derivative() -> None:
    def loss(weight: Any) -> Any:
        reduced = hvd.allreduce({"weight": weight, "count": jnp.arange(2)}, op=hvd.Sum)
        return (reduced["weight"] * reduced["count"]).sum()

    gradient = jax.jit(jax.grad(loss))(jnp.ones(2))
    np.testing.assert_allclose(gradient, [0.0, float(hvd.size()) ** 2])
    with pytest.raises(ValueError, match="no gradient through op Max"):
        jax.grad(lambda x: hvd.allreduce(x, op=hvd.Max).sum())(jnp.ones(2))


@scenario
def calls_inside_of_jit_keep_the_order_of_the_program() -> None:
    """They have no names but their number, so another order would add other tensors."""
    rank, size = hvd.rank(), hvd.size()

    @jax.jit
    def many(values: Any) -> list[Any]:
        return [hvd.allreduce(values[index], op=hvd.Sum) for index in range(50)]

    values = jnp.arange(50.0) * (rank + 1)
    for _ in range(3):
        factor = size * (size + 1) // 2
        assert [float(value) for value in many(values)] == [factor * index for index in range(50)]
        assert float(hvd.allreduce(jnp.float32(1), op=hvd.Sum)) == size  # after all of them


@scenario
def no_call_is_left_out_or_merged_with_another() -> None:
    """XLA does both with pure callbacks: then ranks whose programs differ in what they use would wait forever."""
    is_first = hvd.rank() == 0

    @jax.jit
    def step(x: Any) -> Any:
        one = hvd.allreduce(x, op=hvd.Sum)
        same = hvd.allreduce(x if is_first else x + 1 - 1, op=hvd.Sum)
        hvd.allreduce(x * 2)  # nobody uses it
        return (one + same) if is_first else x

    for _ in range(2):
        found = step(jnp.ones(2))
    assert found.tolist() == [2.0 * hvd.size() if is_first else 1.0] * 2
    assert hvd.allreduce(1.0, op=hvd.Sum) == hvd.size()


@scenario
def control_flow_takes_collectives() -> None:
    size = hvd.size()

    def body(carry: Any, _: Any) -> Any:
        return hvd.allreduce(carry) + 1, None

    scanned = jax.jit(lambda x: jax.lax.scan(body, x, None, length=5)[0])
    assert scanned(jnp.zeros(2)).tolist() == [5.0, 5.0]
    assert jax.jit(jax.grad(lambda x: scanned(x).sum()))(jnp.zeros(2)).tolist() == [1.0, 1.0]
    doubled = jax.jit(lambda x: jax.lax.while_loop(lambda c: c < 100, lambda c: hvd.allreduce(2 * c), x))
    assert float(doubled(jnp.float32(1))) == 128
    chosen = jax.jit(lambda flag, x: jax.lax.cond(flag, lambda x: hvd.allreduce(x, op=hvd.Sum), lambda x: x, x))
    assert [float(chosen(flag, jnp.float32(1))) for flag in (True, False)] == [size, 1]


@scenario
def broadcast_and_allgather_work_inside_of_jit() -> None:
    rank, size = hvd.rank(), hvd.size()
    trees = [_tree(other) for other in range(size)]
    _assert_same(jax.jit(lambda tree: hvd.broadcast(tree, size - 1))(trees[rank]), trees[-1])
    rows = [{"a": jnp.full((2, 3), other), "b": jnp.full((1,), other)} for other in range(size)]
    expected = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rows)
    for gather in (hvd.allgather, jax.jit(hvd.allgather)):
        _assert_same(gather(rows[rank]), expected)
    uneven = hvd.allgather({"a": jnp.full((rank, 2), rank)})["a"]
    assert uneven.tolist() == [[other] * 2 for other in range(size) for _ in range(other)]
    if size > 1:
        with pytest.raises(
            jax.errors.JaxRuntimeError, match="allgather takes arrays with equally many rows, but the ranks have"
        ):
            jax.block_until_ready(jax.jit(hvd.allgather)(jnp.zeros((rank, 2))))
    with pytest.raises(ValueError, match="at least one dimension"):
        jax.jit(hvd.allgather)(jnp.float32(1))
    assert jax.jit(hvd.allgather)(jnp.ones(1)).tolist() == [1.0] * size


@scenario
def the_other_collectives_take_arrays_outside_of_jit() -> None:
    rank, size = hvd.rank(), hvd.size()
    own = jnp.arange(float(size)) + rank
    assert hvd.alltoall(own).tolist() == [rank + float(other) for other in range(size)]
    assert hvd.reducescatter(jnp.ones((size, 2)), op=hvd.Sum).tolist() == [[size, size]]
    assert hvd.synchronize(hvd.allreduce_async(jnp.ones(2), op=hvd.Sum)).tolist() == [size, size]
    received, rows = hvd.alltoall(own, splits=[1] * size)
    assert (received.shape, rows.tolist()) == ((size,), [1] * size)
    with pytest.raises(ValueError, match="inside a function that JAX transforms or compiles"):
        jax.jit(hvd.alltoall)(own)
    with pytest.raises(ValueError, match="expected a JAX array, got list"):
        hvd.alltoall([1.0])


@scenario
def parameters_become_those_of_the_root() -> None:
    state = {"layers": [_tree(hvd.rank()), _tree(hvd.rank() + 7)], "rate": 0.1 * (hvd.rank() + 1), "step": hvd.rank()}
    found = hvd.broadcast_parameters(state, root_rank=0)
    assert (found["rate"], found["step"]) == (0.1, 0)
    _assert_same(found["layers"], [_tree(0), _tree(7)])


@scenario
def some_ranks_take_part_in_a_process_set() -> None:
    ranks = list(range(max(1, hvd.size() - 1)))
    everyone = hvd.size() == 1
    chosen = hvd.global_process_set if everyone else hvd.add_process_set(ranks)
    if hvd.rank() in ranks:
        reduce = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=chosen))
        assert float(reduce(jnp.float32(1))) == len(ranks)
    hvd.barrier()
    if not everyone:
        assert hvd.remove_process_set(chosen)


@scenario
def a_mismatch_is_the_same_on_all_ranks_and_the_next_call_works() -> None:
    if hvd.size() == 1:
        return
    reduce = jax.jit(lambda x: hvd.allreduce(x, name="mismatched"))
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(reduce(jnp.ones(2 + (hvd.rank() == 1))))
    error = hvd.last_error()
    assert isinstance(error, hvd.Mismatch)
    assert "ranks disagree about the shape of tensor 'mismatched[0]'" in str(error)
    assert str(caught.value).count(str(error)) == 1
    assert reduce(jnp.ones(4)).tolist() == [1.0] * 4
    with pytest.raises(hvd.Mismatch):  # as itself where no compiled function is in between
        hvd.allreduce(jnp.ones(2 + (hvd.rank() == 1)), name="mismatched")
    assert hvd.allreduce(1.0, op=hvd.Sum) == hvd.size()


def _kept(gradients: Any) -> Any:
    return gradients


@scenario
def training_is_that_of_one_process_on_the_batches_of_all() -> None:
    rank, size = hvd.rank(), hvd.size()
    generator = np.random.default_rng(3)
    inputs, targets = generator.normal(size=(24, 4)).astype("f"), generator.normal(size=(24, 1)).astype("f")

    def loss(weights: Any, inputs: Any, targets: Any) -> Any:
        hidden = jnp.tanh(inputs @ weights["first"]) @ weights["second"]
        return ((hidden - targets) ** 2).mean()

    def step(weights: Any, inputs: Any, targets: Any, reduce: Any) -> Any:
        gradients = reduce(jax.grad(loss)(weights, inputs, targets))
        return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)

    first = {"first": generator.normal(size=(4, 8)).astype("f"), "second": generator.normal(size=(8, 1)).astype("f")}
    compiled = jax.jit(step, static_argnames="reduce")
    for one_step in (compiled, step):
        alone = first
        together = hvd.broadcast_parameters(jax.tree.map(lambda each: each + rank, first), root_rank=0)
        for _ in range(10):
            alone = compiled(alone, inputs, targets, _kept)
            together = one_step(together, inputs[rank::size], targets[rank::size], hvd.allreduce)
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6), together, alone)


def test_scenario(report: Report, name: str) -> None:
    assert report[name] == ""

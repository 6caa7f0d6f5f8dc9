"""An invalid argument is reported by the call that has it, and the session goes on."""

from __future__ import annotations

import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import process_ranks


@pytest.fixture
def alone() -> Any:
    """A session of one rank, without a launcher."""
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: hvd.allreduce_(np.ones((4, 4))[:, 1]), "not contiguous"),
        (lambda: hvd.broadcast_(np.ones((4, 4)).T, 0), "ascontiguousarray"),
        (lambda: hvd.allreduce(np.ones(3, ">f4")), "dtype >f4 is not supported by allreduce, which supports native"),
        (lambda: hvd.reduce(np.ones(3, np.uint16), 0), "dtype uint16 is not supported by reduce"),
        (lambda: hvd.reducescatter(np.zeros(3, "M8[s]")), r"datetime64\[s\] is not supported by reducescatter"),
        (lambda: hvd.broadcast(np.array([{}]), 0), "dtype object is not supported.*broadcast_object"),
        (lambda: hvd.allreduce(True), r"pass int\(x\)"),
        (lambda: hvd.allreduce(1 << 63), r"does not fit into 64 bits; pass float\(x\)"),
        (lambda: hvd.allreduce(Fraction(1, 2)), "expected a numpy array, got Fraction"),
        (lambda: hvd.allreduce_(1.0), "a number cannot be written in place"),
        (lambda: hvd.recv_(np.float32(1), 0), "rank 0 is this rank itself"),
        (lambda: hvd.allgather(1.0), r"expected a numpy array, got float; numpy.array\(\[x\]\) makes one of one row"),
        (lambda: hvd.allreduce(np.ones(3), compression=1), "compression must be one of hvd.Compression .* not 1"),
        *(
            (lambda op=op: hvd.allreduce(np.ones(3, complex), op=op), f"op {name} of complex numbers is not supported")
            for op, name in ((hvd.Min, "Min"), (hvd.Max, "Max"), (hvd.Product, "Product"), (hvd.Adasum, "Adasum"))
        ),
        (lambda: hvd.allreduce([1.0]), "expected a numpy array, got list"),
        (lambda: hvd.allreduce(np.ones(3), op=hvd.Sum, average=True), "either op or average"),
        (lambda: hvd.allreduce(np.ones(3), op=17), "op 17 is not supported"),
        (lambda: hvd.allreduce(np.ones(3, int), op=hvd.Adasum), "Adasum is for floating-point tensors, not int64"),
        (lambda: hvd.allreduce(np.ones(3), op="Sum"), "op Sum is not supported"),
        (lambda: hvd.reducescatter(np.array(1.0)), "reducescatter needs a tensor with at least one dimension"),
        (lambda: hvd.grouped_reducescatter([np.ones(2), np.array(1.0)]), "reducescatter needs a tensor with"),
        (lambda: hvd.grouped_allgather([np.ones(2), np.array(1.0)]), "allgather needs a tensor with at least one"),
        (lambda: hvd.alltoall(np.array(1.0)), "alltoall needs a tensor with at least one dimension"),
        (lambda: hvd.gather(np.array(1.0), 0), "gather needs a tensor with at least one dimension"),
        (lambda: hvd.scatter(np.array(1.0), 0), "scatter needs a tensor with at least one dimension"),
        (lambda: hvd.alltoall(np.ones(3), splits=3), "splits must be 1 numbers, one for each rank, not 3"),
        (lambda: hvd.alltoall(np.ones(3), splits=np.array([1.5])), "non-negative integers"),
        (lambda: hvd.scatter(np.ones(3), 0, splits=[2, 1]), "splits must be 1 numbers"),
        (lambda: hvd.alltoall(np.ones(3), splits=[4]), "splits add up to 4 rows, but the tensor has 3"),
        (lambda: hvd.alltoall(np.ones(3), splits=[1, 1]), "splits must be 1 numbers"),
        (lambda: hvd.alltoall(np.ones(3), splits=[-1]), "non-negative integers"),
        (lambda: hvd.send(np.ones(3), 0), "rank 0 is this rank itself"),
        (lambda: hvd.recv(np.ones(3), 7), "rank 7 is not a rank"),
        (lambda: hvd.gather(np.ones(3), -1), "root_rank -1 is not a rank"),
        (lambda: hvd.scatter(np.ones(3), 1), "root_rank 1 is not a rank"),
        (lambda: hvd.reduce(np.ones(3), 1), "root_rank 1 is not a rank"),
        (lambda: hvd.allreduce(np.ones(3, bool)), "bool tensor has no average"),
        (lambda: hvd.reducescatter(np.ones(3, bool)), "bool tensor has no average"),
        (lambda: hvd.grouped_allreduce([np.ones(3), np.ones(3, bool)]), "bool tensor has no average"),
        (lambda: hvd.allgather(np.array(1.0)), "at least one dimension"),
        (lambda: hvd.broadcast(np.ones(3), 1), "root_rank 1 is not a rank"),
        (lambda: hvd.broadcast(np.ones(3), -1), "root_rank -1 is not a rank"),
        (lambda: hvd.broadcast(np.ones(3), 0.5), "root_rank 0.5 is not a rank"),
        (lambda: hvd.allreduce(np.ones(3), name=5), "name must be a string of at most 4032 characters, not 5"),
        (lambda: hvd.allreduce(np.ones(3), name="x" * 5000), "name must be a string of at most 4032"),
        (lambda: hvd.allreduce(np.ones(3), name="\ud83d\ude00"), "two surrogates for one character; rename '.ud83d"),
        (lambda: hvd.allreduce(np.ones(3), prescale_factor=float("nan")), "not a number"),
        (lambda: hvd.allreduce_(np.frombuffer(b"12345678")), "read-only"),
        (lambda: hvd.broadcast_(np.broadcast_to(np.ones(1), (1,)), 0), "read-only"),
        (lambda: hvd.grouped_allreduce_([np.ones(3), np.frombuffer(b"12345678")]), "read-only"),
    ],
)
def test_a_wrong_argument_is_a_value_error(alone: None, call: Any, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        call()
    np.testing.assert_array_equal(hvd.allreduce(np.ones(2)), [1, 1])


def test_alone_every_collective_is_the_identity(alone: None) -> None:
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
    tensor = np.arange(6.0).reshape(2, 3)
    for result in (hvd.allreduce(tensor), hvd.allgather(tensor), hvd.broadcast(tensor, 0)):
        np.testing.assert_array_equal(result, tensor)
        assert not np.shares_memory(result, tensor)
    np.testing.assert_array_equal(hvd.allreduce(tensor, prescale_factor=0.5, postscale_factor=4.0), tensor * 2)
    np.testing.assert_array_equal(hvd.allreduce(np.array([7, -7]), prescale_factor=0.5), [3, -3])
    hvd.barrier()


def test_numbers_of_numpy_are_numbers(alone: None) -> None:
    np.testing.assert_array_equal(hvd.allreduce(np.ones(2), op=np.int64(hvd.Sum), prescale_factor=np.float32(2)), 2)
    np.testing.assert_array_equal(hvd.broadcast(np.frombuffer(b"12345678"), np.int32(0)), np.frombuffer(b"12345678"))


def test_before_init_and_after_shutdown() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match=r"hvd.init\(\)"):
            hvd.rank()
        for call in (
            lambda: hvd.allreduce(np.ones(1)),
            lambda: hvd.allgather_async(np.ones(1)),
            lambda: hvd.grouped_reducescatter([np.ones(1)]),
            lambda: hvd.send(np.ones(1), 1),
            hvd.barrier,
            hvd.join,
        ):
            with pytest.raises(hvd.HorovodInternalError, match=r"hvd.init\(\)"):
                call()
        assert not hvd.is_initialized()
        hvd.init()
        hvd.init()
        assert hvd.is_initialized()
        hvd.shutdown()
        hvd.shutdown()


def _splits_that_do_not_fit() -> str:
    hvd.init()
    for splits, hint in (
        (None, "7 rows are not a multiple of 2 ranks; pass splits"),
        ([7], "splits must be 2 numbers, one for each rank, but there are 1"),
        ([4, 4], "splits add up to 8 rows, but the tensor has 7"),
        ([8, -1], "non-negative integers"),
    ):
        with pytest.raises(ValueError, match=hint):
            hvd.alltoall(np.ones(7), splits=splits)
    with pytest.raises(ValueError, match="splits add up to 8 rows"):
        hvd.scatter(np.ones(7), hvd.rank(), splits=[4, 4])
    np.testing.assert_array_equal(hvd.allreduce(np.ones(2), op=hvd.Sum), 2)
    hvd.shutdown()
    return "ok"


def test_splits_that_do_not_fit_are_refused_at_the_call() -> None:
    assert [outcome.result() for outcome in process_ranks(2, _splits_that_do_not_fit)] == ["ok", "ok"]


def _longest_names() -> str:
    hvd.init()
    peer = 1 - hvd.rank()
    for name in ("x" * 4032, "é" * 4032, "\udc80" * 4032):  # the last as in names of files
        hvd.grouped_allreduce([np.ones(2), np.ones(3)], name=name)
        handle = hvd.send_async(np.ones(2), peer, name=name)
        hvd.recv(np.ones(2), peer, name=name)
        hvd.synchronize(handle)
    with pytest.raises(ValueError, match="at most 4032 characters"):
        hvd.allreduce(np.ones(2), name="x" * 4033)
    hvd.shutdown()
    return "ok"


def test_the_longest_names_travel_in_groups_and_messages() -> None:
    assert [outcome.result() for outcome in process_ranks(2, _longest_names)] == ["ok"] * 2


def _overflow_in_adasum() -> bool:
    np.seterr(all="raise")
    warnings.simplefilter("error")
    hvd.init()
    tensor = np.array([1.0, np.inf if hvd.rank() == 0 else 2.0], np.float32)
    with np.errstate(all="ignore"):
        is_finite = bool(np.isfinite(hvd.allreduce(tensor, op=hvd.Adasum)).all())
    hvd.shutdown()
    return is_finite


def test_an_overflow_in_adasum_is_a_value_and_not_an_error() -> None:
    assert [outcome.result() for outcome in process_ranks(2, _overflow_in_adasum)] == [False] * 2


def _an_impossible_set_on_one_rank() -> str:
    hvd.init()
    with pytest.raises(hvd.Mismatch, match="disagree about process sets"):
        hvd.add_process_set([0, 9] if hvd.rank() else [0])
    total = hvd.allreduce(np.ones(1), op=hvd.Sum)
    hvd.shutdown()
    return f"{total[0]:g}"


def test_an_impossible_set_on_one_rank_is_a_mismatch_on_all() -> None:
    assert [outcome.result() for outcome in process_ranks(2, _an_impossible_set_on_one_rank)] == ["2"] * 2


def test_average_as_an_argument_is_deprecated(alone: None) -> None:
    with pytest.warns(DeprecationWarning, match="pass op=hvd.Average") as caught:
        hvd.allreduce(np.ones(1), average=True)
    assert caught[0].filename == __file__

"""What is wrong with one call is said at that call, and the session goes on."""

from __future__ import annotations

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
        (lambda: hvd.allreduce(np.ones((4, 4))[:, 1]), "not contiguous"),
        (lambda: hvd.allreduce(np.ones((4, 4)).T), "ascontiguousarray"),
        (lambda: hvd.allreduce(np.ones(3, complex)), "dtype complex128 is not supported"),
        (lambda: hvd.allreduce(np.ones(3, ">f4")), "native-endian"),
        (lambda: hvd.allreduce([1.0]), "expected a numpy array, got list"),
        (lambda: hvd.allreduce(np.ones(3), op=hvd.Sum, average=True), "either op or average"),
        (lambda: hvd.allreduce(np.ones(3), op=17), "op 17 is not supported"),
        (lambda: hvd.allreduce(np.ones(3, int), op=hvd.Adasum), "Adasum is for floating-point tensors, not int64"),
        (lambda: hvd.reducescatter(np.ones(3), op=hvd.Adasum), "Adasum is not supported"),
        (lambda: hvd.reducescatter(np.array(1.0)), "at least one dimension"),
        (lambda: hvd.alltoall(np.ones(3), splits=[4]), "splits add up to 4 rows, but the tensor has 3"),
        (lambda: hvd.alltoall(np.ones(3), splits=[1, 1]), "splits must be 1 numbers"),
        (lambda: hvd.alltoall(np.ones(3), splits=[-1]), "whole numbers from 0 on"),
        (lambda: hvd.send(np.ones(3), 0), "rank 0 is this rank itself"),
        (lambda: hvd.recv(np.ones(3), 7), "rank 7 is not a rank"),
        (lambda: hvd.gather(np.ones(3), -1), "root_rank -1 is not a rank"),
        (lambda: hvd.allreduce(np.ones(3, bool)), "bool tensor has no average"),
        (lambda: hvd.allgather(np.array(1.0)), "at least one dimension"),
        (lambda: hvd.broadcast(np.ones(3), 1), "root_rank 1 is not a rank"),
        (lambda: hvd.broadcast(np.ones(3), -1), "root_rank -1 is not a rank"),
        (lambda: hvd.broadcast(np.ones(3), 0.5), "root_rank 0.5 is not a rank"),
        (lambda: hvd.allreduce(np.ones(3), name=5), "name is text of at most 4096 characters, not 5"),
        (lambda: hvd.allreduce(np.ones(3), name="x" * 5000), "name is text of at most 4096"),
        (lambda: hvd.allreduce(np.ones(3), prescale_factor=float("nan")), "not a number"),
        (lambda: hvd.allreduce_(np.frombuffer(b"12345678")), "read-only"),
        (lambda: hvd.broadcast_(np.broadcast_to(np.ones(1), (1,)), 0), "read-only"),
        (lambda: hvd.poll(7), "not a handle"),
        (lambda: hvd.synchronize("x"), "not a handle"),
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


def test_a_handle_is_synchronized_once(alone: None) -> None:
    handle = hvd.allreduce_async(np.ones(3))
    np.testing.assert_array_equal(hvd.synchronize(handle), 1)
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match="synchronized once"):
        hvd.poll(handle)


def test_before_init_and_after_shutdown() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match=r"hvd.init\(\)"):
            hvd.rank()
        with pytest.raises(hvd.HorovodInternalError, match=r"hvd.init\(\)"):
            hvd.allreduce(np.ones(1))
        assert not hvd.is_initialized()
        hvd.init()
        hvd.init()
        assert hvd.is_initialized()
        hvd.shutdown()
        hvd.shutdown()


def _duplicate_names() -> str:
    hvd.init()
    first = hvd.allreduce_async(np.full(3, hvd.rank() + 1.0), name="x", op=hvd.Sum) if hvd.rank() == 0 else None
    if first is not None:
        with pytest.raises(hvd.DuplicateName, match="'x' is already in flight"):
            hvd.allreduce_async(np.ones(5), name="x")
        assert not hvd.poll(first)
    hvd.barrier()  # overtakes the tensor that is waiting
    first = first or hvd.allreduce_async(np.full(3, hvd.rank() + 1.0), name="x", op=hvd.Sum)
    np.testing.assert_array_equal(hvd.synchronize(first), 3)
    hvd.shutdown()
    return "ok"


def test_a_duplicate_name_is_refused_and_the_first_one_completes() -> None:
    assert [outcome.result() for outcome in process_ranks(2, _duplicate_names)] == ["ok", "ok"]


def _disagree() -> list[str]:
    hvd.init()
    rank = hvd.rank()
    texts = []
    for attempt in range(2):  # the second time on cached names
        for call in (
            lambda: hvd.allreduce(np.ones(3 + rank), name="shape"),
            lambda: hvd.allreduce(np.ones(3, f"f{4 + 4 * rank}"), name="dtype"),
            lambda: hvd.allreduce(np.ones(3), name="op", op=(hvd.Sum, hvd.Max)[rank]),
            lambda: hvd.allreduce(np.ones(3), name="scale", prescale_factor=1.0 + rank),
            lambda: hvd.broadcast(np.ones(3), rank, name="root"),
            lambda: hvd.allgather(np.ones((3, 1 + rank)), name="rest"),
            lambda: hvd.allgather(np.ones((3,) * (1 + rank)), name="ndim"),
            lambda: (hvd.allgather, hvd.allreduce)[rank](np.ones(3), name="kind"),
        ):
            with pytest.raises(hvd.Mismatch) as caught:
                call()
            texts.append(str(caught.value))
        for name in ("shape", "dtype", "op", "scale", "root", "rest", "ndim", "kind"):
            np.testing.assert_array_equal(hvd.allreduce(np.ones(2), name=name, op=hvd.Sum), 2.0), attempt
    hvd.shutdown()
    return texts


def test_every_disagreement_names_both_sides_on_all_ranks() -> None:
    ours, theirs = (outcome.result() for outcome in process_ranks(2, _disagree))
    assert ours == theirs
    assert ours[:8] == ours[8:]
    for text, what in zip(
        ours,
        ("shape", "dtype", "reduce op", "prescale", "root rank", "after the first", "dimensions", "operation"),
        strict=False,
    ):
        assert what in text
        assert "rank 0 has" in text
        assert "rank 1 has" in text

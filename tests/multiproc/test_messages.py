"""send and recv, and the collectives with one root."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import ProcessRanks, pause_at, process_ranks, reached


def _ping_pong() -> None:
    """Between each pair in turn, while the others do nothing, or are busy with a collective of their own."""
    rank, size = hvd.rank(), hvd.size()
    for dtype in ("bool", "int64", "float16"):
        for first in range(size):
            for second in range(size):
                if first == second or rank not in (first, second):
                    continue
                ball = np.arange(7).astype(dtype)
                other = second if rank == first else first
                for _ in range(3):
                    if rank == first:
                        assert hvd.send(ball, other) is None
                    got = hvd.recv(np.empty_like(ball), other)
                    np.testing.assert_array_equal(got, ball)
                    assert got.dtype == ball.dtype
                    if rank == second:
                        hvd.send(got, other)


def _many_in_both_directions() -> None:
    """All messages between all ranks are in flight at once, begun and ended in different orders."""
    rank, size = hvd.rank(), hvd.size()
    shapes = [(), (0,), (5,), (2, 3), (70_000,)]
    order = np.random.default_rng(rank)
    handles: list[tuple[Any, Any, int]] = []
    for peer in order.permutation([peer for peer in range(size) if peer != rank]):
        for tag in order.permutation(20):
            shape = shapes[tag % len(shapes)]
            handles.append((hvd.send_async(np.full(shape, 100 * rank + tag), peer, name=f"tag {tag}"), None, 0))
            target = np.empty(shape, int)
            start = hvd.recv_async_ if tag % 2 else hvd.recv_async
            handle = start(target, peer, name=f"tag {tag}")
            handles.append((handle, target if tag % 2 else None, 100 * peer + tag))
    for index in order.permutation(len(handles)):
        handle, target, expected = handles[index]
        result = hvd.synchronize(handle)
        if expected:
            np.testing.assert_array_equal(result, expected)
            assert target is None or result is target


def _every_root() -> None:
    """gather, scatter and reduce to and from each rank; what the others give to a scatter is only a pattern."""
    rank, size = hvd.rank(), hvd.size()
    for root in range(size):
        rows = [np.full((peer * 2 % 3, 2), peer) for peer in range(size)]
        gathered = hvd.gather(rows[rank], root)
        np.testing.assert_array_equal(gathered, np.concatenate(rows) if rank == root else np.empty((0, 2)))
        whole = np.arange(2 * size + 1)
        given = whole if rank == root else np.empty(9, int)
        parts = np.split(whole, np.cumsum([3] + [2] * (size - 2)))  # the first gets the row that is left
        np.testing.assert_array_equal(hvd.scatter(given, root), parts[rank])
        counts = [0, *range(1, size)]
        begin = sum(counts[:rank])
        got = hvd.scatter(np.arange(20) if rank == root else np.empty(0, int), root, splits=counts)
        np.testing.assert_array_equal(got, np.arange(begin, begin + counts[rank]))
        for shape in ((), (4, 2)):
            reduced = hvd.reduce(np.full(shape, rank + 1.0), root, op=hvd.Sum)
            assert reduced.shape == (shape if rank == root else (0, *shape[1:]))
            np.testing.assert_array_equal(reduced, size * (size + 1) / 2)


def _all_of_it() -> str:
    hvd.init()
    _ping_pong()
    _many_in_both_directions()
    _every_root()
    hvd.barrier()
    hvd.shutdown()
    return "ok"


@pytest.mark.parametrize(("size", "plane"), [(2, "shm"), (3, "shm"), (3, "ring"), (4, "ring"), (3, "zmq")])
def test_over_each_plane(size: int, plane: str) -> None:
    outcomes = process_ranks(size, _all_of_it, environ={"HVDLITE_PLANE": plane})
    assert [outcome.result() for outcome in outcomes] == ["ok"] * size


def _rank_1_is_somewhere_else() -> str:
    hvd.init()
    if hvd.rank() == 1:
        pause_at("somewhere else")
    elif hvd.rank() == 0:
        hvd.send(np.arange(100_000.0), 2)
    else:
        np.testing.assert_array_equal(hvd.recv(np.empty(100_000), 0), np.arange(100_000))
    reached("delivered")
    hvd.barrier()
    hvd.shutdown()
    return "ok"


@pytest.mark.parametrize("plane", ["shm", "ring"])
def test_a_message_needs_nothing_from_a_third_rank(plane: str) -> None:
    with ProcessRanks(3, _rank_1_is_somewhere_else, environ={"HVDLITE_PLANE": plane}) as ranks:
        ranks.wait_for("somewhere else", 1)
        ranks.wait_for("delivered", 0, 2)
        ranks.release(1)
        assert [outcome.result() for outcome in ranks.join()] == ["ok"] * 3


def _what_does_not_fit() -> list[str]:
    hvd.init()
    rank = hvd.rank()
    texts = []
    for name in ("again", "again", None):
        if rank == 2:
            continue
        for shape, dtype in (((3 + rank,), "f4"), ((3,), ("f4", "i8")[rank])):
            call = (hvd.send, hvd.recv)[rank]
            with pytest.raises(hvd.Mismatch) as caught:
                call(np.ones(shape, dtype), 1 - rank, name=name)
            texts.append(str(caught.value))
        if rank == 0:
            hvd.send(np.ones(2), 1, name=name)
        else:
            np.testing.assert_array_equal(hvd.recv(np.zeros(2), 0, name=name), 1)
    hvd.barrier()
    hvd.shutdown()
    return texts


def test_both_sides_hear_that_a_message_does_not_fit() -> None:
    sender, receiver, other = (outcome.result() for outcome in process_ranks(3, _what_does_not_fit))
    assert sender == receiver
    assert other == []
    assert ["rank 0 has [3]; rank 1 has [4]" in text for text in sender] == [True, False] * 3
    assert ["rank 0 has float32; rank 1 has int64" in text for text in sender] == [False, True] * 3


def _messages_in_a_set() -> str:
    """Ranks are those of the job, also in a set; names of one set are nothing to another."""
    hvd.init()
    rank = hvd.rank()
    pair = hvd.add_process_set([1, 3])
    if rank in (1, 3):
        other = 4 - rank
        inner = hvd.recv_async(np.empty(3), other, name="x", process_set=pair)
        outer = hvd.recv_async(np.empty(3), other, name="x")
        handles = [hvd.send_async(np.full(3, rank * 1.0), other, name="x")]
        handles += [hvd.send_async(np.full(3, rank * 10.0), other, name="x", process_set=pair)]
        np.testing.assert_array_equal(hvd.synchronize(inner), other * 10)
        np.testing.assert_array_equal(hvd.synchronize(outer), other)
        assert [hvd.synchronize(handle) for handle in handles] == [None, None]
        with pytest.raises(ValueError, match=r"rank 0 is not in the process set of ranks \[1, 3\]"):
            hvd.send(np.ones(3), 0, process_set=pair)
        with pytest.raises(ValueError, match="this rank itself"):
            hvd.send(np.ones(3), rank, process_set=pair)
    for wrong, hint in ((rank, "this rank itself"), (4, "not a rank of this job"), (-1, "not a rank of this job")):
        for call in (hvd.send, hvd.send_async, hvd.recv, hvd.recv_async, hvd.recv_, hvd.recv_async_):
            with pytest.raises(ValueError, match=hint):
                call(np.ones(3), wrong)
    hvd.barrier()
    hvd.shutdown()
    return "ok"


def test_messages_in_a_set_and_to_ranks_that_are_none() -> None:
    assert [outcome.result() for outcome in process_ranks(4, _messages_in_a_set)] == ["ok"] * 4

"""Blocking calls that are one native call, beside everything that makes a call take the usual way."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.negotiation.kinds import KINDS
from hvdlite.negotiation.messages import Kind
from tests.harness import pause_at, process_ranks, reached
from tests.harness.blocking import Counted
from tests.harness.processes import ProcessRanks

_DTYPES = ("uint8", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
_LENGTHS = (0, 1, 3, 1000, 2048, 4096, 4097, 20_000, 70_001)
_OPS = {"Sum": hvd.Sum, "Average": hvd.Average, "Min": hvd.Min, "Max": hvd.Max, "Product": hvd.Product}


def _mine(dtype: str, length: int, rank: int) -> Any:
    random = np.random.default_rng((rank, length))
    if dtype.startswith("float"):  # whose sums depend on the order
        return random.normal(size=length).astype(dtype)
    return random.integers(0, 2 if dtype == "bool" else 5, length).astype(dtype)


def _all_types_and_sizes() -> tuple[list[bytes], Counter[str]]:
    hvd.init()
    results = []
    with Counted() as counts:
        for dtype in _DTYPES:
            for length in _LENGTHS:
                for name, op in _OPS.items():
                    if dtype == "bool" and op == hvd.Average:
                        continue
                    scales = {} if dtype == "bool" or op != hvd.Sum else {"prescale_factor": 0.5, "postscale_factor": 3}
                    mine = _mine(dtype, length, hvd.rank())
                    for _ in range(3):  # the first is new
                        result = hvd.allreduce(mine, name=f"{dtype} {length} {name}", op=op, **scales)
                    results.append(result.tobytes())
                    in_place = hvd.allreduce_(mine, name=f"{dtype} {length} {name}", op=op, **scales)
                    assert in_place is mine
                    assert in_place.tobytes() == result.tobytes()
    hvd.shutdown()
    return results, counts


@pytest.mark.parametrize(
    ("count", "plane", "spin"),
    [(1, "auto", "-1"), (2, "auto", "-1"), (3, "auto", "20"), (5, "auto", "-1"), (3, "ring", "-1")],
)
def test_all_types_and_sizes_have_the_same_bits_as_without_the_page(count: int, plane: str, spin: str) -> None:
    """A ring adds in another order, so there no call takes the short way. Ranks that spin move tensors in parts."""
    with_page, without = (
        [
            outcome.result()
            for outcome in process_ranks(
                count,
                _all_types_and_sizes,
                environ={"HVDLITE_PAGE": page, "HVDLITE_PLANE": plane, "HVDLITE_SPIN": spin},
            )
        ]
        for page in ("1", "0")
    )
    assert all(results == without[0][0] for results, _ in with_page + without)
    for _, counts in with_page:
        assert (counts["done"] > 100) == (plane == "auto")
    assert not any(counts for _, counts in without)


def _all_kinds() -> tuple[list[bytes], Counter[str]]:
    """Every blocking collective, with ranks of different lengths, and tensors of all sizes that fit and do not fit."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    results = []

    def call(function: Any, *arguments: Any, **options: Any) -> None:
        result = function(*arguments, **options)
        found = result if isinstance(result, tuple) else (result,)
        results.extend(each.tobytes() + repr((each.shape, each.dtype)).encode() for each in found)

    with Counted() as counts:
        for rows, columns in ((0, 3), (1, 1), (5, 3), (40, 100), (200, 100), (400, 100), (2000, 100)):
            for root in range(min(size, 2)):
                of = f"{rows} {columns} {root}"
                mine = _mine("float32", rows * columns, rank).reshape(rows, columns)
                uneven = mine[: max(0, rows - rank)]
                splits = [rows - rows // size * (size - 1), *[rows // size] * (size - 1)]
                of_root = splits if rank == root else None
                for _ in range(3):
                    call(hvd.allgather, uneven, name=f"allgather {of}")
                    call(hvd.broadcast, mine, root, name=f"broadcast {of}")
                    call(hvd.broadcast_, mine.copy(), root, name=f"broadcast_ {of}")
                    call(hvd.reducescatter, mine, name=f"reducescatter {of}", op=hvd.Sum)
                    call(hvd.reduce, mine, root, name=f"reduce {of}")
                    call(hvd.alltoall, mine, splits, name=f"alltoall {of}")
                    call(hvd.gather, uneven, root, name=f"gather {of}")
                    call(hvd.scatter, mine if rank == root else mine[:0], root, of_root, name=f"scatter {of}")
                    call(hvd.allreduce, mine.astype(complex), name=f"complex {of}")
                    assert hvd.allreduce(rank, name=f"number {of}", op=hvd.Sum) == sum(range(size))
                    hvd.barrier()
    hvd.shutdown()
    return results, counts


@pytest.mark.parametrize(("count", "spin"), [(1, "-1"), (2, "20"), (3, "-1")])
def test_all_kinds_have_the_same_results_as_without_the_page(count: int, spin: str) -> None:
    with_page, without = (
        [
            outcome.result()
            for outcome in process_ranks(count, _all_kinds, environ={"HVDLITE_PAGE": page, "HVDLITE_SPIN": spin})
        ]
        for page in ("1", "0")
    )
    for (results, counts), (expected, _) in zip(with_page, without, strict=True):
        assert results == expected
        for kind, row in zip(Kind, KINDS, strict=True):
            assert (counts[str(kind)] > 0) == row.by_all, kind


def _all_groups() -> tuple[list[bytes], Counter[str]]:
    """Every grouped form, of tensors of different dtypes and lengths, that fit into the page together and do not."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    results = []
    with Counted() as counts:
        for lengths in ((), (7,), (0, 5, 0), (1, 2, 3, 1000), (4097, 1, 30_000), (70_001, 5, 200_000), (3,) * 300):
            mine = [_mine(_DTYPES[number % 7], length, rank) for number, length in enumerate(lengths)]
            even = [np.repeat(each, size) for each in mine]
            of = f"of {len(lengths)} {sum(lengths)}"
            for _ in range(3):
                found = [
                    *hvd.grouped_allreduce(mine, name=f"allreduce {of}", op=hvd.Sum),
                    *hvd.grouped_allreduce_([each.copy() for each in mine], name=f"allreduce_ {of}", op=hvd.Max),
                    *hvd.grouped_allgather([each[rank:] for each in mine], name=f"allgather {of}"),
                    *hvd.grouped_reducescatter(even, name=f"reducescatter {of}", op=hvd.Sum),
                ]
                results += [each.tobytes() + repr((each.shape, each.dtype)).encode() for each in found]
    hvd.shutdown()
    return results, counts


@pytest.mark.parametrize(("count", "spin"), [(1, "-1"), (2, "20"), (3, "20"), (3, "0")])
def test_groups_have_the_same_results_as_without_the_page(count: int, spin: str) -> None:
    with_page, without = (
        [
            outcome.result()
            for outcome in process_ranks(count, _all_groups, environ={"HVDLITE_PAGE": page, "HVDLITE_SPIN": spin})
        ]
        for page in ("1", "0")
    )
    for (results, counts), (expected, _) in zip(with_page, without, strict=True):
        assert results == expected
        for tensors in (3, 4, 300):
            assert counts[f"{tensors} tensors"] > 0, counts


def _rows_that_change() -> Counter[str]:
    """One rank gathers another number of rows now and then: on the others the request is the same object."""
    hvd.init()
    size = hvd.size()
    with Counted() as counts:
        for step in range(60):
            rows = step // 7 % 3 if hvd.rank() == 0 else 2
            found = hvd.allgather(np.full((rows, 2), hvd.rank()), name="a")
            assert found.shape == (step // 7 % 3 + 2 * (size - 1), 2)
            assert (found == np.repeat(np.arange(size), [step // 7 % 3, *[2] * (size - 1)])[:, None]).all()
            splits = [rows, *[4 - rows] * (size - 1)]  # of one shape if there are two ranks
            mine = np.full(sum(splits), hvd.rank())
            moved, counts_of = hvd.alltoall(mine, splits, name="b")
            from_root = step // 7 % 3 if hvd.rank() == 0 else 4 - step // 7 % 3
            assert counts_of.tolist() == [from_root, *[2] * (size - 1)]
            assert moved.tolist() == np.repeat(np.arange(size), counts_of).tolist()
    hvd.shutdown()
    return counts


@pytest.mark.parametrize("count", [2, 3])
def test_rows_that_change_on_another_rank_are_noticed(count: int) -> None:
    for outcome in process_ranks(count, _rows_that_change):
        assert outcome.result()["done"] > 0


def _two_sets() -> int:
    """A thread of rank 0 waits in one set for a rank that stays away, and another thread calls in another set."""
    hvd.init()
    sets = [hvd.add_process_set([0, other]) for other in (1, 2)]
    other = hvd.rank()
    array, done = np.ones(3), 0
    for process_set in sets:
        if process_set.included():
            for _ in range(3):
                hvd.allreduce(array, name="a", process_set=process_set)
    if other == 0:
        waiting = threading.Thread(target=lambda: hvd.allreduce(array, name="a", process_set=sets[0]))
        waiting.start()
        reached("waits")
    if other == 1:
        pause_at("away")
    if other != 1:
        for _ in range(100):
            hvd.allreduce(array, name="a", process_set=sets[1])
            done += 1
        reached("through")
    if other == 0:
        waiting.join()
    elif other == 1:
        hvd.allreduce(array, name="a", process_set=sets[0])
    hvd.shutdown()
    return done


def test_calls_of_two_groups_do_not_wait_for_each_other() -> None:
    with ProcessRanks(3, _two_sets) as ranks:
        ranks.wait_for("away", 1)
        ranks.wait_for("waits", 0)
        ranks.wait_for("through", 0, 2)
        ranks.release(1)
        assert [outcome.result() for outcome in ranks.join()] == [100, 0, 100]


def _mixed(seed: int) -> Counter[str]:
    """The same tensors, on each rank in forms, orders and threads of its own."""
    hvd.init()
    chance = random.Random(f"{seed} {hvd.rank()}")
    size = hvd.size()

    def call(name: str, step: int, form: int) -> None:
        mine = np.full(100, hvd.rank() + step, np.float32)
        total = sum(range(size)) + size * step
        if form == 0:
            result = hvd.allreduce(mine, name=name, op=hvd.Sum)
        elif form == 1:
            result = hvd.allreduce_(mine, name=name, op=hvd.Sum)
        elif form == 2:
            result = hvd.synchronize(hvd.allreduce_async(mine, name=name, op=hvd.Sum))
        elif form == 3:
            result = np.stack(hvd.grouped_allreduce([mine, mine[:0]], name=name, op=hvd.Sum)[:1])
        else:
            handle = hvd.grouped_allreduce_async([mine, mine[:0]], name=name, op=hvd.Sum)
            result = np.stack(hvd.synchronize(handle)[:1])
        assert (result == total).all()

    def call_all(name: str) -> None:
        for step in range(150):
            if chance.random() < 0.05:
                time.sleep(0.004)  # the others leave their calls
            forms = [3, 3, 4] if step % 4 == 3 else [0, 0, 1, 2]
            call(name, step, chance.choice(forms if step % 30 < 15 else forms[:2]))  # then all ranks make calls

    with Counted() as counts:
        for alone in range(2):
            threads = [threading.Thread(target=call_all, args=(f"of thread {number}",)) for number in range(2)]
            if alone:
                call_all("of the main thread")
            for thread in threads:
                thread.start()
            if not alone:
                call_all("of the main thread")
            for thread in threads:
                thread.join()
    hvd.barrier()
    hvd.shutdown()
    return counts


@pytest.mark.parametrize("count", [2, 3, 5])
def test_calls_meet_tensors_that_others_submit_in_other_ways(count: int) -> None:
    for outcome in process_ranks(count, _mixed, count):
        counts = outcome.result()
        assert counts["done"] > 0
        assert counts["left"] > 0


def _without_names(seed: int) -> Counter[str]:
    """Ranks make the same calls in the same order, and at first in the same way: only blocking ones."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    together, alone = random.Random(seed), random.Random(seed * size + rank)
    pending: list[tuple[Any, Any, float]] = []

    def finish() -> None:
        for handle, tensor, expected in pending:
            hvd.synchronize(handle)
            assert tensor.tolist() == [expected] * len(tensor)
        pending.clear()

    with Counted() as counts:
        for step in range(400):
            length, name = together.choice([1, 3, 200]), together.choice([None, None, None, "named"])
            kind = together.choice(["allreduce", "broadcast", "reduce"])
            tensor = np.full(length, step * (rank + 1), np.float32)
            expected = float(step if kind == "broadcast" else step * sum(range(1, size + 1)))
            if name is not None:
                finish()
            if step < 200 or alone.random() < 0.7:
                if kind == "allreduce":
                    result = hvd.allreduce_(tensor, op=hvd.Sum, name=name)
                elif kind == "broadcast":
                    result = hvd.broadcast(tensor, 0, name=name)
                else:
                    result = hvd.reduce(tensor, 0, op=hvd.Sum, name=name)
                assert (kind == "reduce" and rank > 0) or result.tolist() == [expected] * length, (step, kind)
            elif kind == "allreduce":
                pending.append((hvd.allreduce_async_(tensor, op=hvd.Sum, name=name), tensor, expected))
            elif kind == "broadcast":
                pending.append((hvd.broadcast_async_(tensor, 0, name=name), tensor, expected))
            else:
                hvd.reduce(tensor, 0, op=hvd.Sum, name=name)
            if step == 199:
                counts["alike"] = counts["done"] + counts["left"]
            if alone.random() < 0.2:
                finish()
        finish()
    hvd.shutdown()
    return counts


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_calls_without_names_are_known_by_what_they_are(count: int) -> None:
    for seed in range(3):
        for outcome in process_ranks(count, _without_names, seed):
            assert outcome.result()["alike"] > 20  # the more the less busy the machine is


def _different_calls_without_names() -> list[str]:
    hvd.init()
    found = []
    for turn in range(6):
        for length in (3, 4):
            for _ in range(3):
                assert hvd.allreduce(np.ones(length), op=hvd.Sum).tolist() == [hvd.size()] * length
        length = 4 if hvd.rank() == turn % hvd.size() else 3
        with pytest.raises(hvd.Mismatch) as refused:
            hvd.allreduce(np.ones(length), op=hvd.Sum)
        found.append(str(refused.value))
    hvd.shutdown()
    return found


@pytest.mark.parametrize("count", [2, 3])
def test_different_calls_without_names_are_a_mismatch(count: int) -> None:
    """Also if all ranks know both descriptions, and each waits for its own."""
    for outcome in process_ranks(count, _different_calls_without_names):
        for turn, message in enumerate(outcome.result()):
            assert f"'allreduce.noname.{7 * turn + 6}'" in message
            assert "[3]" in message
            assert "[4]" in message


def _changing() -> Counter[str]:
    """A name whose tensor changes, a name with less storage than its tensor, a session that begins again, a fork."""
    with Counted() as counts:
        for _ in range(3):
            hvd.init()
            for length in (3, 3, 5, 5, 3, 3):
                assert (hvd.allreduce(np.ones(length), name="a", op=hvd.Sum) == hvd.size()).all()
            for op, expected in ((hvd.Sum, hvd.size()), (hvd.Average, 1), (hvd.Sum, hvd.size())):
                assert (hvd.allreduce(np.ones(3), name="a", op=op) == expected).all()
            if hvd.rank() == 0:
                with pytest.raises(hvd.Mismatch, match="ranks disagree about the shape of tensor 'a'"):
                    hvd.allreduce(np.ones(4), name="a", op=hvd.Sum)
            else:
                with pytest.raises(hvd.Mismatch, match="ranks disagree about the shape of tensor 'a'"):
                    hvd.allreduce(np.ones(3), name="a", op=hvd.Sum)
            assert (hvd.allreduce(np.ones(3), name="a", op=hvd.Sum) == hvd.size()).all()
            for lengths in ((3, 5), (3, 5), (5, 3), (3, 5, 3), (3, 5), (3, 5)):
                for each in hvd.grouped_allreduce([np.ones(length) for length in lengths], name="g", op=hvd.Sum):
                    assert (each == hvd.size()).all()
            with pytest.raises(hvd.Mismatch, match="ranks disagree about the number of tensors in group 'g'"):
                hvd.grouped_allreduce([np.ones(3), *[np.ones(5)] * (1 + hvd.rank())], name="g", op=hvd.Sum)
            for _ in range(3):
                hvd.grouped_allreduce([np.ones(3), np.ones(5)], name="g", op=hvd.Sum)
            if (child := os.fork()) == 0:
                try:
                    hvd.allreduce(np.ones(3), name="a", op=hvd.Sum)
                except hvd.HorovodInternalError:
                    os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            for _ in range(20):
                assert (hvd.allreduce(np.ones(3), name="a", op=hvd.Sum) == hvd.size()).all()
            hvd.shutdown()
    return counts


def test_what_changes_between_calls_is_noticed() -> None:
    for outcome in process_ranks(2, _changing):
        assert outcome.result()["done"] > 30


def _with_joins() -> Counter[str]:
    hvd.init()
    with Counted() as counts:
        for epoch in range(3):
            for step in range(5 + 10 * hvd.rank()):
                total = hvd.allreduce(np.ones(10), name="loss", op=hvd.Sum)
                assert 1 <= total[0] <= hvd.size(), (epoch, step)
            assert hvd.join() == hvd.size() - 1
    hvd.shutdown()
    return counts


def test_ranks_that_have_joined_let_the_others_go_on() -> None:
    for outcome in process_ranks(3, _with_joins):
        assert outcome.result()["done"] >= 1


def test_a_rank_that_dies_ends_the_calls_of_the_others() -> None:
    with ProcessRanks(3, _lose_one) as ranks:
        ranks.wait_for("ready")
        killed = ranks.kill(2)
        outcomes = ranks.join()
        for rank in range(2):
            assert outcomes[rank].result() == 2
            assert ranks.time_of("lost", rank) - killed < 5.0


def _lose_one_that_calls() -> int:
    hvd.init()
    large = np.ones(1 << 17, np.float32)
    for step in itertools.count():
        try:
            assert hvd.allreduce(large, name="a", op=hvd.Sum)[-1] == hvd.size()
        except hvd.PeerLost as error:
            reached("lost")
            hvd.shutdown()
            return error.rank
        if step == 20:
            reached("ready")
    raise AssertionError


@pytest.mark.parametrize("count", [2, 3])
def test_a_rank_that_dies_while_a_tensor_moves_ends_the_calls_of_the_others(count: int) -> None:
    for _ in range(3):
        with ProcessRanks(count, _lose_one_that_calls, environ={"HVDLITE_SPIN": "20"}) as ranks:
            ranks.wait_for("ready")
            killed = ranks.kill(count - 1)
            outcomes = ranks.join()
            for rank in range(count - 1):
                assert outcomes[rank].result() == count - 1
                assert ranks.time_of("lost", rank) - killed < 5.0


def _lose_one() -> int | None:
    hvd.init()
    for _ in range(10):
        hvd.allreduce(np.ones(10), name="a", op=hvd.Sum)
    if hvd.rank() == 2:
        pause_at("ready")
    reached("ready")
    lost = None
    try:
        hvd.allreduce(np.ones(10), name="a", op=hvd.Sum)
    except hvd.PeerLost as error:
        lost = error.rank
    reached("lost")
    hvd.shutdown()
    return lost

"""join: ranks that run out of data give zeros until all have, and what cannot run without their data says so."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hvdlite as hvd
from tests.harness import ProcessRanks, pause_at, process_ranks, reached
from tests.harness.patience import NEVER_SILENT, STALLED
from tests.multiproc import calls, oracle
from tests.multiproc.calls import Call


def run(size: int, work: Any, *arguments: Any, **environ: str) -> list[Any]:
    return [outcome.result() for outcome in process_ranks(size, work, *arguments, environ={**STALLED, **environ})]


def _uneven_steps() -> list[int]:
    """Rank r has r + 1 steps in the first epoch and ever one less, around the corner, in the next."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    lasts = []
    for epoch in range(size + 1):
        steps = [(peer + epoch) % size + 1 for peer in range(size)]
        for step in range(steps[rank]):
            live = [peer for peer in range(size) if steps[peer] > step]
            name = f"step {step}" if epoch % 2 else None
            total = hvd.allreduce(np.full(6, rank + 1, np.int64), op=hvd.Sum, name=name)
            np.testing.assert_array_equal(total, sum(peer + 1 for peer in live))
            group = hvd.grouped_allreduce([np.full(3, rank + 1.0), np.full((), rank + 1, np.float16)], name="group")
            for one in group:  # an average divides by the number of all ranks
                np.testing.assert_allclose(one, sum(peer + 1 for peer in live) / size, rtol=1e-3)
        last = hvd.join()
        assert steps[last] == size
        np.testing.assert_array_equal(hvd.broadcast(np.full(2, rank), root_rank=last), last)
        lasts.append(last)
    hvd.shutdown()
    return lasts


@pytest.mark.parametrize(
    ("size", "plane", "cache"),
    [
        (1, "auto", 4096),
        (2, "shm", 0),
        (2, "ring", 4096),
        (3, "shm", 4096),
        (3, "ring", 3),
        (3, "zmq", 3),
        (4, "shm", 3),
        (4, "ring", 0),
    ],
)
def test_uneven_data(size: int, plane: str, cache: int) -> None:
    lasts = run(size, _uneven_steps, HVDLITE_PLANE=plane, HVDLITE_CACHE_CAPACITY=str(cache))
    assert lasts == [lasts[0]] * size
    assert lasts[0] == [(size - 1 - epoch) % size for epoch in range(size + 1)]


def _random_epochs(seeds: list[int]) -> str:
    """In each epoch ranks have some number of steps; what the last step left in flight ends after the join."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    ranks, everyone = list(range(size)), hvd.global_process_set
    order = random.Random(rank)
    for seed in seeds:
        drawn = random.Random(seed)
        steps = [drawn.randrange(5) for _ in ranks]
        calls_of_steps = [[_allreduce(drawn) for _ in range(drawn.randint(1, 5))] for _ in range(max(steps))]
        handles: list[tuple[Call, list[Any], Any]] = []
        for step, step_calls in enumerate(calls_of_steps[: steps[rank]]):
            for number, call in order.sample(list(enumerate(step_calls)), len(step_calls)):
                inputs = [calls.tensors(call, peer, size) for peer in ranks]
                wanted = [
                    oracle.reduction(
                        [one if steps[peer] > step else np.zeros_like(one) for peer, one in enumerate(of_part)],
                        call.op,
                        call.prescale,
                    )
                    for of_part in zip(*inputs, strict=True)
                ]
                handle = calls.start(call, f"{step % 2} {number}", "_async", inputs[rank], ranks, everyone)
                handles.append((call, wanted, handle))
            if step % 2:  # the names come again
                _check(handles)
        hvd.join()
        _check(handles)
    hvd.shutdown()
    return "ok"


def _allreduce(drawn: random.Random) -> Call:
    kind = drawn.choice(calls.ALLREDUCES)
    count = drawn.randint(1, 3) if kind == "grouped_allreduce" else 1
    shapes = [(), (0,), (5,), (3, 2), (20_000,)]
    parts = tuple((drawn.choice(["int32", "float16", "float64"]), drawn.choice(shapes)) for _ in range(count))
    op, prescale = drawn.choice([hvd.Sum, hvd.Average]), drawn.choice([1.0, 1.0, 0.5])
    return Call(kind, parts, op=op, prescale=prescale, seed=drawn.randrange(50))


def _check(handles: list[tuple[Call, list[Any], Any]]) -> None:
    for call, wanted, handle in handles:
        oracle.assert_results(call, hvd.synchronize(handle), wanted)
    handles.clear()


@settings(max_examples=3)
@given(
    size=st.integers(2, 4),
    plane=st.sampled_from(["shm", "ring"]),
    cache=st.sampled_from([0, 3, 4096]),
    seeds=st.lists(st.integers(0, 1000), min_size=1, max_size=10),
)
def test_random_epochs(size: int, plane: str, cache: int, seeds: list[int]) -> None:
    results = run(size, _random_epochs, seeds * 2, HVDLITE_PLANE=plane, HVDLITE_CACHE_CAPACITY=str(cache))
    assert results == ["ok"] * size


def _others_join_early(ends: list[int]) -> list[str]:
    """Calls of the ranks of ``ends`` are refused meanwhile, first under new names and then under known ones."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    collectives = {
        "min": lambda name: hvd.allreduce(np.ones(3), op=hvd.Min, name=name),
        "max": lambda name: hvd.allreduce(np.ones(3), op=hvd.Max, name=name),
        "product": lambda name: hvd.allreduce(np.ones(3), op=hvd.Product, name=name),
        "adasum": lambda name: hvd.allreduce(np.ones(3), op=hvd.Adasum, name=name),
        "allgather": lambda name: hvd.allgather(np.ones(rank + 1), name=name),
        "broadcast": lambda name: hvd.broadcast(np.ones(3), ends[0], name=name),
        "alltoall": lambda name: hvd.alltoall(np.ones(size), name=name),
        "reducescatter": lambda name: hvd.reducescatter(np.ones(7), name=name),
        "reduce": lambda name: hvd.reduce(np.ones(3), ends[0], name=name),
        "gather": lambda name: hvd.gather(np.ones(3), ends[0], name=name),
        "scatter": lambda name: hvd.scatter(np.ones(3 * (rank == ends[0])), ends[0], name=name),
        "grouped_allgather": lambda name: hvd.grouped_allgather([np.ones(3)], name=name),
        "grouped_reducescatter": lambda name: hvd.grouped_reducescatter([np.ones(3)], name=name),
        "grouped_allreduce": lambda name: hvd.grouped_allreduce([np.ones(3), np.ones(2)], op=hvd.Max, name=name),
        "barrier": lambda name: hvd.barrier(),
    }
    for kind, call in collectives.items():
        call(f"known {kind}")
    texts = []
    if rank in ends:
        hvd.allreduce(np.ones(2), name="until the others have joined", op=hvd.Sum)
        for prefix in ("new", "known"):
            for kind, call in collectives.items():
                with pytest.raises(hvd.HorovodInternalError, match="have joined") as caught:
                    call(f"{prefix} {kind}")
                texts.append(f"{prefix} {kind}: {caught.value}")
                np.testing.assert_array_equal(hvd.allreduce(np.ones(2), name="next", op=hvd.Sum), len(ends))
    hvd.join()
    for kind, call in collectives.items():  # and afterwards all of it works again
        call(f"known {kind}")
        call(f"new {kind}")
    hvd.shutdown()
    return texts


@pytest.mark.parametrize(("size", "ends"), [(2, [1]), (3, [0, 2]), (4, [1, 3])])
def test_what_needs_the_data_of_joined_ranks_is_refused_on_the_live_ones(size: int, ends: list[int]) -> None:
    joined = ", ".join(str(rank) for rank in range(size) if rank not in ends)
    for rank, texts in enumerate(run(size, _others_join_early, ends)):
        assert len(texts) == (30 if rank in ends else 0)
        for text in texts:
            assert f"rank(s) {joined} have joined" in text
            assert "barrier" in text or text.split(":")[0] in text.split(":", 1)[1], text


def _messages_between_live_ranks() -> str:
    """Rank 1 has joined; messages to it fail, and those between the others do not."""
    hvd.init()
    rank = hvd.rank()
    if rank != 1:
        hvd.allreduce(np.ones(2), op=hvd.Sum)
        if rank == 0:
            hvd.send(np.arange(5), 2)
            with pytest.raises(hvd.HorovodInternalError, match=r"send .* rank\(s\) 1 have joined"):
                hvd.send(np.ones(5), 1)
        else:
            np.testing.assert_array_equal(hvd.recv(np.empty(5, int), 0), np.arange(5))
            with pytest.raises(hvd.HorovodInternalError, match=r"send .* rank\(s\) 1 have joined"):
                hvd.recv(np.ones(5), 1)
    hvd.join()
    hvd.shutdown()
    return "ok"


def test_messages_between_live_ranks() -> None:
    assert run(3, _messages_between_live_ranks) == ["ok"] * 3


def _automatic_names_after_different_numbers() -> list[float]:
    hvd.init()
    rank = hvd.rank()
    results = []
    for _ in range(3):
        for _ in range(1 + 4 * rank):
            hvd.allreduce(np.ones(2))
        hvd.join()
        results.append(float(hvd.allreduce(np.full(2, rank + 1.0), op=hvd.Sum)[0]))
        results.append(float(hvd.allgather(np.full(1, rank + 1.0)).sum()))
        hvd.barrier()
    hvd.shutdown()
    return results


def test_automatic_names_agree_after_a_join() -> None:
    assert run(3, _automatic_names_after_different_numbers) == [[6.0] * 6] * 3


def _join_with_open_handles() -> str:
    """All have joined while handles are open on some ranks: they run before the last join ends."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    handles = [hvd.allreduce_async(np.full(4, rank + 1.0), op=hvd.Sum, name=f"open {i}") for i in range(rank * 5)]
    hvd.join()
    assert all(hvd.poll(handle) for handle in handles)
    for i, handle in enumerate(handles):
        live = [peer for peer in range(size) if peer * 5 > i]
        np.testing.assert_array_equal(hvd.synchronize(handle), sum(peer + 1 for peer in live))
    assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == size
    hvd.shutdown()
    return "ok"


def test_all_join_with_handles_open() -> None:
    assert run(3, _join_with_open_handles) == ["ok"] * 3


def _a_set_goes_on() -> float:
    """Joining is among all ranks: a process set of ranks that have not joined needs nobody else."""
    hvd.init()
    pair = hvd.add_process_set([0, 2])
    if hvd.rank() == 1:
        hvd.join()
        total = 0.0
    else:
        hvd.allreduce(np.ones(1))
        total = float(hvd.allreduce(np.ones(2), op=hvd.Max, process_set=pair)[0])
        hvd.allgather(np.ones(2), process_set=pair)
        hvd.barrier(process_set=pair)
        hvd.join()
    hvd.shutdown()
    return total


def test_a_process_set_of_live_ranks_goes_on() -> None:
    assert run(3, _a_set_goes_on) == [1.0, 0.0, 1.0]


def _killed_while_others_join() -> Any:
    hvd.init()
    if hvd.rank() == 1:
        pause_at("working")
    reached("joining")
    try:
        hvd.join()
    except hvd.PeerLost as error:
        return error.rank


def test_a_rank_that_dies_ends_the_join_of_the_others() -> None:
    with ProcessRanks(3, _killed_while_others_join, environ=NEVER_SILENT) as ranks:
        ranks.wait_for("joining", 0, 2)
        ranks.wait_for("working", 1)
        ranks.kill(1)
        outcomes = ranks.join()
    assert [outcomes[rank].result() for rank in (0, 2)] == [1, 1]


def _submit_while_joined() -> str:
    hvd.init()
    if hvd.rank() == 1:
        pause_at("working")
        hvd.join()
        return ""
    joining = threading.Thread(target=hvd.join)
    joining.start()
    while True:  # until the thread has joined
        try:
            hvd.allreduce_async(np.ones(1))
        except hvd.HorovodInternalError as error:
            reached("refused")
            joining.join()
            return str(error)


def test_a_rank_that_has_joined_submits_nothing_more() -> None:
    with ProcessRanks(2, _submit_while_joined) as ranks:
        ranks.wait_for("refused", 0)
        ranks.release(1)
        refusal, _ = (outcome.result() for outcome in ranks.join())
    assert "this rank has joined, so it cannot submit until hvd.join() returns" in refusal


def _a_set_is_added_too_early() -> list[Any]:
    hvd.init()
    refusal = ""
    if hvd.rank() == 0:
        hvd.join()
    else:
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.add_process_set([0, 1])
        refusal = str(caught.value)
        hvd.join()
    pair = hvd.add_process_set([0, 1])
    hvd.shutdown()
    return [refusal, pair.ranks]


def test_sets_are_added_after_a_join_and_not_in_it() -> None:
    outcomes = run(3, _a_set_is_added_too_early)
    assert [ranks for _, ranks in outcomes] == [[0, 1]] * 3
    assert all("rank(s) 0 have joined" in refusal for refusal, _ in outcomes[1:])

"""The negotiator and the caches: what runs, in which order, and what is said when ranks disagree."""

from __future__ import annotations

from typing import Any

import pytest

from hvdlite.negotiation.agree import is_well_formed
from hvdlite.negotiation.messages import JOIN_NAME, Kind, Ready, Tuning
from hvdlite.negotiation.negotiate import Negotiator
from hvdlite.negotiation.wire import ProtocolError, encode
from hvdlite.tensors.device import CPU, Device
from hvdlite.tensors.dtypes import FLOAT8, Adasum, Average, DType, Max, Opaque
from tests.unit.replicas import Ranks, request


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_tensors_run_once_every_rank_has_them(size: int) -> None:
    ranks = Ranks(size)
    assert ranks.step(request("a"), request("b")) == [("a", "b")]
    assert ranks.step(request("b"), request("a")) == [("a", "b")]  # known now: the order of their bits


def test_nothing_runs_before_the_last_rank_submits() -> None:
    ranks = Ranks(3)
    for rank in (0, 2):
        ranks.leaves[rank].submit(request("a"))
        ranks.send_up(rank)
    assert not ranks.negotiator.has_agreed
    assert ranks.negotiator.waiting() == {"a": ((11,), (10, 12))}
    ranks.leaves[1].submit(request("a"))
    ranks.settle()
    assert [leaf.ran for leaf in ranks.leaves] == [[("a",)]] * 3


def test_it_tells_who_was_the_last_of_all_ranks() -> None:
    negotiator = Negotiator(range(3), 8, Tuning(1 << 20))
    for ready in (Ready(0, 0, (request("a"),)), Ready(0, 1, ())):
        assert [negotiator.receive(rank, ready) for rank in (1, 0, 2)] == [False, False, True]
        negotiator.cut()


def test_nobody_is_the_last_where_not_all_take_part() -> None:
    negotiator = Negotiator(range(3), 8, Tuning(1 << 20))
    message = Ready(0, 0, (request("m", kind=Kind.SEND, root=0, peer=1, cacheable=False),))
    assert [negotiator.receive(rank, message) for rank in (1, 0)] == [False, False]
    join = Ready(0, 0, (request(JOIN_NAME, kind=Kind.JOIN, cacheable=False),))
    assert not negotiator.receive(0, join)
    for rank in (1, 2):
        assert not negotiator.receive(rank, Ready(0, 0, (request("a"),)))
    assert negotiator.has_agreed


def test_different_orders_of_submission_run_in_one_order() -> None:
    ranks = Ranks(2, threshold=0)
    names = ["a", "b", "c", "d"]
    for known in (False, True):
        for name in names:
            ranks.leaves[0].submit(request(name))
        for name in reversed(names):
            ranks.leaves[1].submit(request(name))
        ranks.settle()
        assert ranks.leaves[0].ran == ranks.leaves[1].ran, known
        assert sorted(ranks.leaves[0].ran) == [(name,) for name in names]
        for leaf in ranks.leaves:
            leaf.ran.clear()


def test_a_known_step_is_one_small_message_up() -> None:
    ranks = Ranks(2, capacity=1000)
    tensors = [request(f"gradient of a layer with a long name {i}") for i in range(1000)]
    ranks.step(*tensors)
    ranks.leaves[0].submit(*tensors)
    ranks.leaves[1].submit(*tensors)
    assert ranks.send_up(0) < 200
    ranks.settle()


def test_fusion_fills_batches_up_to_the_threshold() -> None:
    ranks = Ranks(2, threshold=24)  # two tensors of 12 bytes
    tensors = [request(name) for name in "abcde"]
    assert ranks.step(*tensors) == [("a", "b"), ("c", "d"), ("e",)]
    assert ranks.step(*tensors) == [("a", "b"), ("c", "d"), ("e",)]
    assert ranks.step(request("huge", shape=(100,)), request("a")) == [("a",), ("huge",)]


def test_tensors_on_different_kinds_of_devices_are_not_fused() -> None:
    first, second = Device("toy", 0), Device("toy", 1)
    tensors = [request("a"), request("b", device=first), request("c"), request("d", device=second)]
    moved = [request(name, kind=Kind.BROADCAST, device=device) for name, device in (("e", CPU), ("f", first))]
    ranks = Ranks(2)
    for _ in range(2):
        assert sorted(ranks.step(*tensors, *moved)) == [("a", "c"), ("b", "d"), ("e",), ("f",)]


def test_ranks_may_use_different_devices_of_a_kind() -> None:
    ranks = Ranks(2)
    for rank, leaf in enumerate(ranks.leaves):
        leaf.submit(request("a", device=Device("toy", rank)))
    ranks.settle()
    assert [leaf.ran for leaf in ranks.leaves] == [[("a",)]] * 2
    ranks.leaves[0].submit(request("a", device=Device("toy", 0)))
    ranks.leaves[1].submit(request("a"))
    ranks.settle()
    sides = "rank 10 has toy; rank 11 has cpu"
    text = f"ranks disagree about the device of tensor 'a': {sides}. Submit the same on every rank."
    assert [leaf.errors for leaf in ranks.leaves] == [{"a": text}] * 2


@pytest.mark.parametrize(
    "changes",
    [dict(op=Adasum), dict(kind=Kind.BARRIER, shape=(), cacheable=False), dict(kind=Kind.JOIN, cacheable=False)],
    ids=["adasum", "barrier", "join"],
)
def test_what_only_cpus_do_is_refused_on_another_device(changes: dict[str, Any]) -> None:
    asked = request(JOIN_NAME if changes.get("kind") is Kind.JOIN else "t", **changes)
    assert is_well_formed(asked, 0, 2)
    assert not is_well_formed(asked._replace(device=Device("toy")), 0, 2)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_is_moved_everywhere_and_added_on_other_devices_only(dtype: Opaque) -> None:
    asked = request("t", dtype=dtype)
    assert not is_well_formed(asked, 0, 2)
    assert is_well_formed(asked._replace(device=Device("toy")), 0, 2)
    assert is_well_formed(asked._replace(kind=Kind.BROADCAST), 0, 2)
    assert not is_well_formed(asked._replace(device=Device("toy"), dtype=Opaque("float8_e4m3", 1)), 0, 2)


def test_what_cannot_be_reduced_together_is_not_fused() -> None:
    ranks = Ranks(2)
    tensors = (request("a"), request("b", dtype=DType.INT32), request("c", op=Max), request("d", postscale=0.5))
    for _ in range(2):
        assert sorted(ranks.step(*tensors)) == [("a",), ("b",), ("c",), ("d",)]


def test_gathers_and_broadcasts_fuse_and_barriers_do_not() -> None:
    ranks = Ranks(2)
    tensors = (
        request("g", kind=Kind.ALLGATHER),
        request("b", kind=Kind.BROADCAST, dtype=DType.INT8, root=1),
        request("x", kind=Kind.BARRIER, cacheable=False),
        request("y", kind=Kind.BARRIER, cacheable=False),
    )
    assert sorted(ranks.step(*tensors)) == [("g", "b"), ("x",), ("y",)]


MISMATCHES = [
    (dict(dtype=DType.FLOAT64), "dtype", "float32", "float64"),
    (dict(shape=(4,)), "shape", "[3]", "[4]"),
    (dict(op=Average), "reduce op", "Sum", "Average"),
    (dict(prescale=0.5), "prescale_factor", "1.0", "0.5"),
    (dict(postscale=2.0), "postscale_factor", "1.0", "2.0"),
    (dict(kind=Kind.ALLGATHER), "operation", "allreduce", "allgather"),
]


@pytest.mark.parametrize(("change", "what", "ours", "theirs"), MISMATCHES)
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("odd", [0, 1, 2])
def test_a_mismatch_reaches_every_rank_and_names_both_sides(
    change: dict[str, object], what: str, ours: str, theirs: str, is_known: bool, odd: int
) -> None:
    ranks = Ranks(3)
    if is_known:
        ranks.step(request("t"))
    for rank, leaf in enumerate(ranks.leaves):
        leaf.submit(request("t", **(change if rank == odd else {})))
    for rank in range(3):
        ranks.send_up(rank)
    run = ranks.negotiator.cut()
    assert run.bits == is_known  # leaders forget that ranks of their hosts submitted it as a bit
    for leaf in ranks.leaves:
        leaf.down.append(encode(run, 0, 0))
        leaf.take()
    texts = {leaf.errors["t"] for leaf in ranks.leaves}
    assert len(texts) == 1
    text = texts.pop()
    others = [rank for rank in range(3) if rank != odd]
    assert f"the {what} of tensor 't'" in text
    assert f"rank {10 + odd} has {theirs}" in text
    assert f"ranks {10 + others[0]}, {10 + others[1]} have {ours}" in text
    assert ranks.step(request("t")) == [("t",)]


def test_a_tensor_that_changes_on_all_ranks_gets_a_new_meaning() -> None:
    ranks = Ranks(2)
    ranks.step(request("t"))
    assert ranks.step(request("t", shape=(7,))) == [("t",)]
    ranks.leaves[0].submit(request("t", shape=(7,)))
    ranks.leaves[1].submit(request("t", shape=(7,)))
    assert ranks.send_up(0) < 56  # a bit again
    ranks.settle()


def test_an_allgather_of_which_one_rank_changes_its_rows() -> None:
    ranks = Ranks(2)
    gather = request("g", kind=Kind.ALLGATHER)
    ranks.step(gather)
    ranks.leaves[0].submit(gather)  # a bit, which meets a request
    ranks.leaves[1].submit(gather._replace(shape=(9,)))
    ranks.settle()
    assert [leaf.replica.cache.definitions[0].rows for leaf in ranks.leaves] == [(3, 9), (3, 9)]


def test_a_full_cache_forgets_everything_at_one_point() -> None:
    ranks = Ranks(2, capacity=2)
    for index in range(20):
        name = f"t{index}"
        assert ranks.step(request(name)) == [(name,)]
        assert ranks.step(request(name)) == [(name,)]


def test_bits_that_cross_a_forgetting_are_read_with_the_old_table() -> None:
    ranks = Ranks(2, capacity=2)
    ranks.step(request("a"), request("b"))
    ranks.leaves[1].submit(request("a"))  # a bit of generation 0, still on its way
    for leaf in ranks.leaves:
        leaf.submit(request("c"))  # the table is full: forgotten after this is cut
    ranks.send_up(0)
    late = ranks.leaves[1].up.popleft()
    ranks.send_up(1)
    ranks.cut()
    ranks.leaves[1].up.append(late)
    ranks.send_up(1)
    ranks.leaves[0].submit(request("a"))
    ranks.settle()
    assert [leaf.ran[-1] for leaf in ranks.leaves] == [("a",), ("a",)]


def test_names_that_the_user_did_not_give_are_not_remembered() -> None:
    ranks = Ranks(2, capacity=2)
    for index in range(10):
        ranks.step(request(f"allreduce.noname.{index}", cacheable=False))
    assert ranks.step(request("a"), request("b")) == [("a", "b")]
    assert ranks.leaves[0].replica.cache.generation == 0


@pytest.mark.parametrize(
    "ready",
    [Ready(0, 1, ()), Ready(7, 1, ()), Ready(0, 0, (request("t"), request("t")))],
    ids=["unknown bit", "unknown generation", "twice"],
)
def test_what_no_correct_rank_sends_is_refused(ready: Ready) -> None:
    with pytest.raises(ProtocolError, match="rank 1"):
        Negotiator(range(2), 8, Tuning(8)).receive(1, ready)


def test_a_tensor_is_blank_if_no_rank_has_a_value_for_it() -> None:
    ranks = Ranks(3)
    lacking = [{"a", "b"}, {"a"}, {"a", "b"}]
    for requests in (
        [request("a"), request("b")],
        [request("a"), request("b")],
        [request("a"), request("b", shape=(4,))],
    ):
        for leaf, blank in zip(ranks.leaves, lacking, strict=True):
            leaf.submit(*requests, blank=blank)
        ranks.settle()
    assert [leaf.blank for leaf in ranks.leaves] == [{"a": [True] * 3, "b": [False] * 3}] * 3
    ranks.step(request("a"))
    assert [leaf.blank["a"][-1] for leaf in ranks.leaves] == [False] * 3


@pytest.mark.parametrize("lacking", [(True, True), (True, False), (False, True)])
def test_ranks_that_describe_a_blank_tensor_anew_find_it_blank(lacking: tuple[bool, bool]) -> None:
    """A bit that was ready already is read as the request that it stands for."""
    ranks = Ranks(2)
    ranks.step(request("a"))
    ranks.leaves[0].submit(request("a"), blank={"a"} if lacking[0] else ())
    ranks.send_up(0)
    ranks.leaves[1].submit(request("a", prescale=1), blank={"a"} if lacking[1] else ())
    ranks.leaves[1].up[-1] = encode(Ready(0, 0, (request("a"),), 0, int(lacking[1])), 0, 0)
    ranks.settle()
    assert [leaf.blank["a"] for leaf in ranks.leaves] == [[False, all(lacking)]] * 2


def test_what_failed_leaves_no_trace_of_a_value() -> None:
    ranks = Ranks(2)
    for rank, leaf in enumerate(ranks.leaves):
        leaf.submit(request("a", shape=(rank,)), blank={"a"})
    ranks.settle()
    assert all(leaf.errors for leaf in ranks.leaves)
    ranks.step(request("a"))
    assert [leaf.blank["a"] for leaf in ranks.leaves] == [[False]] * 2
    assert not ranks.negotiator._blank


def test_a_rank_that_has_joined_has_no_value() -> None:
    ranks = Ranks(3)
    ranks.step(request("a"))
    ranks.leaves[0].submit(request(JOIN_NAME, kind=Kind.JOIN, shape=(), cacheable=False))
    for lacking in ({"a"}, ()):
        for rank in (1, 2):
            ranks.leaves[rank].submit(request("a"), blank=lacking if rank == 2 else {"a"})
        ranks.settle()
    assert [leaf.blank["a"] for leaf in ranks.leaves[1:]] == [[False, True, False]] * 2

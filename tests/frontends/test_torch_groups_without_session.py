"""Groups that belong to no session, whose ranks met through a store of PyTorch: two of them in one process.

Their ranks are threads. Nothing in hvdlite knows a store: an exchange is any function.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import distributed

import hvdlite as hvd
from hvdlite.errors import PeerLost
from hvdlite.groups.choose import arena_part
from hvdlite.groups.connecting import Exchange
from hvdlite.groups.group import Group
from hvdlite.members.membership import Host, Membership
from hvdlite.negotiation.messages import EndKind, Kind
from hvdlite.ops.arrays import collectives
from hvdlite.ops.handles import run
from hvdlite.ops.meeting import barrier_entry, join_entry
from hvdlite.ops.objects import broadcast_bytes
from hvdlite.ops.table import COLLECTIVES
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from tests.harness import process_ranks, thread_ranks
from tests.harness.forkserver import TORCH
from tests.harness.interrupts import At, Interrupt, raise_interrupt
from tests.harness.patience import PATIENCE_S

SIZE = 3  # of each group
OPTIONS = Settings(peer_timeout=4 * PATIENCE_S)


def _tcp_stores(folder: Path) -> Callable[[], Any]:
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return lambda: distributed.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)


def _hash_stores(folder: Path) -> Callable[[], Any]:
    store = distributed.HashStore()
    return lambda: store


_STORES: dict[str, Callable[[Path], Callable[[], Any]]] = {  # the store as each rank has it
    "HashStore": _hash_stores,
    "FileStore": lambda folder: lambda: distributed.FileStore(str(folder / "store"), 2 * SIZE),
    "TCPStore": _tcp_stores,
}


def _over(store: Any, rank: int) -> Exchange:
    """The exchange of ``rank`` over a store that its group has for itself."""
    rounds = itertools.count()

    def exchange(offer: Any) -> list[Any]:
        number = next(rounds)
        store.set(f"{number} {rank}", json.dumps(offer))
        return [json.loads(store.get(f"{number} {other}")) for other in range(SIZE)]

    return exchange


def _open(store: Any, name: str, rank: int, hosts: str = "aaa") -> Group:
    """Opens a group whose ranks have nothing but a store, with memory that those of a host share."""
    exchange = _over(distributed.PrefixStore(name, store), rank)
    offers = exchange({"host": hosts[rank], "key": secrets.token_hex(32)})
    host_of = tuple(Host(offer["host"], offer["host"]) for offer in offers)
    membership = Membership(rank, tuple(range(SIZE)), host_of, 0, bytes.fromhex(offers[0]["key"]))
    return Group.open(membership, OPTIONS, exchange, Scope.of(PATIENCE_S), arena_part(membership, OPTIONS))


def _close(group: Group) -> None:
    group.end(EndKind.LEFT, Scope.of(PATIENCE_S))


def _array(rank: int) -> Any:
    return np.full((SIZE, 2), float(rank), np.float32)


def _run_all_kinds(group: Group) -> None:
    """Runs a collective of each kind, with its result checked."""
    rank, last = group.rank, SIZE - 1
    own, total = _array(rank), float(sum(range(SIZE)))
    ran = set()

    def call(name: str, tensors: Any, **arguments: Any) -> Any:
        ran.add(name)
        return run(collectives.draft(name, group, tensors, **arguments))

    assert (call("allreduce", own, op=hvd.Sum) == total).all()
    assert (call("grouped_allreduce", [own, own], op=hvd.Sum)[1] == total).all()
    assert (call("reducescatter", own, op=hvd.Sum) == total).all()
    assert (call("grouped_reducescatter", [own, own], op=hvd.Sum)[1] == total).all()
    reduced = call("reduce", own, root_rank=last, op=hvd.Sum)
    assert rank != last or (reduced == total).all()
    everyone = np.concatenate([_array(each) for each in range(SIZE)])
    assert (call("allgather", own) == everyone).all()
    assert (call("grouped_allgather", [own, own])[1] == everyone).all()
    assert (call("broadcast", own, root_rank=last) == last).all()
    assert (call("grouped_broadcast", [own, own], root_rank=last)[1] == last).all()
    assert (call("alltoall", own)[0][:, 0] == range(SIZE)).all()
    gathered = call("gather", own, root_rank=last)
    assert len(gathered) == (len(everyone) if rank == last else 0)
    assert (call("scatter", own, root_rank=last) == last).all()
    if rank == 0:
        call("send", own, rank=last)
    elif rank == last:
        assert (call("recv", own, rank=0) == 0).all()
    ran |= {"send", "recv"}
    assert ran == {row.name for row in COLLECTIVES}
    run(barrier_entry(group))
    assert broadcast_bytes(group, lambda: b"bytes of rank 1", 1, None)[0] == b"bytes of rank 1"
    joined = run(join_entry(group))
    assert joined in range(SIZE)


def _copies(group: Group, tensor: Any) -> int:
    """The bytes that an all-reduce of ``tensor`` in place copies."""
    before = group.statistics().counters["copied_bytes"]
    run(collectives.draft("allreduce_", group, tensor, name="place", op=hvd.Sum))
    return group.statistics().counters["copied_bytes"] - before


def _registered(group: Group) -> None:
    """Sums in the memory that ranks share, without a copy."""
    assert group.memory is not None
    shared = np.asarray(group.memory.arena.allocate(1 << 20)).view(np.float32)
    shared[:] = group.rank
    assert _copies(group, shared) == 0
    assert (shared == sum(range(SIZE))).all()
    assert _copies(group, np.zeros(2 << 20, np.float32)) > 0


def _two_groups(folder: Path, store: str, part: Callable[[Group, str], None], hosts: str = "aaa") -> None:
    """Runs ``part`` in each rank of two groups at once, which share a store."""
    store_of_rank = _STORES[store](folder)

    def rank_of_either(number: int) -> None:
        name = "AB"[number // SIZE]
        part(_open(store_of_rank(), name, number % SIZE, hosts), name)

    thread_ranks(2 * SIZE, rank_of_either)


def _use_and_close(group: Group, name: str) -> None:
    _run_all_kinds(group)
    if group.membership.is_one_host:
        _registered(group)
    _close(group)
    assert group.ended is not None
    assert group.ended.kind is EndKind.LEFT


@pytest.mark.parametrize("hosts", ["aaa", "aab", "abc"])
@pytest.mark.parametrize("store", ["HashStore", "FileStore"])
def test_two_groups_that_met_through_a_store_run_every_kind_of_collective(
    store: str, hosts: str, tmp_path: Path
) -> None:
    assert {kind.name.lower() for kind in Kind} <= {row.name for row in COLLECTIVES} | {"barrier", "join"}
    _two_groups(tmp_path, store, _use_and_close, hosts)
    assert not hvd.is_initialized()


def _met_at_a_server(folder: str) -> None:
    _two_groups(Path(folder), "TCPStore", _use_and_close)


def test_two_groups_that_met_at_the_server_of_a_store(tmp_path: Path) -> None:
    """In a process of its own, since torch keeps a pipe of the server."""
    process_ranks(1, _met_at_a_server, str(tmp_path), server=TORCH)[0].result()


def _beside_a_session(folder: str) -> list[float]:
    """Each rank of the session has two groups of its own, whose names for tensors are those of the session."""
    hvd.init()
    shared = hvd.shared_empty(1000)
    shared.fill(1.0)
    handle = hvd.allreduce_async_(shared, name="place", op=hvd.Sum)
    _two_groups(Path(folder), "HashStore", _use_and_close)
    hvd.synchronize(handle)
    hvd.allreduce_(shared, name="place", op=hvd.Sum)
    hvd.shutdown()
    return [float(shared.min()), float(shared.max())]


def test_two_groups_beside_a_session(tmp_path: Path) -> None:
    for outcome in process_ranks(2, _beside_a_session, str(tmp_path), server=TORCH):
        assert outcome.result() == [4.0, 4.0]


def _survive(group: Group, name: str) -> None:
    """Rank 1 of group A ends without a word, as if its process had; group B goes on."""
    if name == "A":
        if group.rank == 1:
            group.end(EndKind.EXITED, Scope.of(PATIENCE_S))
            group.end(EndKind.LEFT, Scope.of(0))
            return
        for _ in range(2):  # what is in flight, and what is submitted later
            with pytest.raises(PeerLost) as lost:
                _run_all_kinds(group)
            assert lost.value.rank == 1
        assert group.ended is not None
        assert group.ended.kind is EndKind.GONE
        _close(group)
        return
    _use_and_close(group, name)


def test_a_group_goes_on_when_a_rank_of_another_one_is_lost(tmp_path: Path) -> None:
    _two_groups(tmp_path, "HashStore", _survive)


def test_a_rank_that_is_cancelled_fails_all_of_its_group() -> None:
    store = distributed.HashStore()

    def part(rank: int) -> str:
        scope = Scope.of(PATIENCE_S)
        exchange = _over(store, rank)
        membership = Membership(rank, tuple(range(SIZE)), (Host("a", "a"),) * SIZE, 0, bytes(32))
        if rank == 1:
            scope.cancel("its program has other plans")
        with pytest.raises(hvd.HorovodInternalError) as refused:
            Group.open(membership, OPTIONS, exchange, scope)
        return str(refused.value)

    assert set(thread_ranks(SIZE, part)) == {"rank 1: its program has other plans"}


def test_a_scope_that_is_cancelled_when_all_ranks_have_the_group_changes_nothing() -> None:
    store = distributed.HashStore()

    def part(rank: int) -> None:
        scope, exchange = Scope.of(PATIENCE_S), _over(store, rank)

        def cancelling(offer: Any) -> list[Any]:
            offers = exchange(offer)
            if "failure" in offer:  # the outcome, which is exchanged last
                scope.cancel("too late")
            return offers

        membership = Membership(rank, tuple(range(SIZE)), (Host("a", "a"),) * SIZE, 0, bytes(32))
        group = Group.open(membership, OPTIONS, cancelling, scope)
        _run_all_kinds(group)
        _close(group)

    thread_ranks(SIZE, part)


@pytest.mark.parametrize("kinds", [*itertools.product((EndKind.LEFT, EndKind.EXITED, EndKind.REMOVED), repeat=2)])
def test_a_group_that_has_ended_may_be_ended_again(kinds: tuple[EndKind, EndKind]) -> None:
    store = distributed.HashStore()

    def part(rank: int) -> None:
        group = _open(store, "ended", rank)
        for kind in (*kinds, EndKind.LEFT):
            group.end(kind, Scope.of(PATIENCE_S))

    thread_ranks(SIZE, part)


def test_a_signal_handler_interrupts_the_opening_of_a_group_at_any_bytecode() -> None:
    """In the main thread. Nothing is left: the test fails if there are threads, descriptors or memory."""
    membership = Membership(0, (0,), (Host("a", "a"),), 0, bytes(32))
    before = signal.signal(signal.SIGUSR1, raise_interrupt)
    try:
        for number in itertools.count(step=11):
            at, groups = At(number), list[Group]()
            with contextlib.suppress(Interrupt), at:
                groups.append(Group.open(membership, OPTIONS, lambda offer: [offer], Scope.of(PATIENCE_S)))
            for group in groups:
                _close(group)
            if not at.where:
                break
    finally:
        signal.signal(signal.SIGUSR1, before)

"""A rank is lost, and those that are left go on in the same processes as a group of the next epoch, which others join.

Nothing of a session or of a launcher is in these tests: a group is made of a membership and an exchange.
"""

from __future__ import annotations

import gc
import itertools
import time
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from hvdlite.errors import PeerLost
from hvdlite.groups.choose import arena_part
from hvdlite.groups.group import Group
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import EndKind, Kind, Request
from hvdlite.rendezvous.client import Exchanges, Meeting
from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.server import RendezvousServer
from hvdlite.rendezvous.world import meet_world
from hvdlite.scope import Scope
from hvdlite.settings import Settings, Start
from hvdlite.tensors.buffer import address_of
from hvdlite.tensors.dtypes import DType, Sum
from tests.harness import ProcessRanks, pause_at, reached, thread_ranks
from tests.harness.leaks import holdings, left_since
from tests.harness.patience import NEVER_SILENT, PATIENCE_S, PROMPT_S

Array = np.ndarray[Any, Any]


class Member:
    """One rank of the world that the ranks at ``meeting`` come together in next, until it is closed."""

    def __init__(self, meeting: Meeting, rank: int, size: int, options: Settings, host: str = "h") -> None:
        scope = Scope.of(PATIENCE_S)
        start = Start(rank=rank, size=size, hostid=host)
        exchange = Exchanges(meeting, rank, size, scope)
        world = meet_world(start, options, meeting, exchange)
        members, options = world.membership, replace(options, address=world.address)
        self.group = Group.open(members, options, exchange, scope, arena_part(members, options))
        self.rank, self.size, self.epoch = members.rank, members.size, members.epoch

    def submit(self, tensor: Array, name: str) -> Entry:
        address = address_of(tensor)
        request = Request(name, Kind.ALLREDUCE, DType.FLOAT32, tensor.shape, Sum, 1.0, 1.0, 0, cacheable=True)
        entry = Entry(request, self.group, address, address, tensor.nbytes, tensor, tensor)
        self.group.submit(entry)
        return entry

    def allreduce(self, tensor: Array, name: str) -> None:
        """Sums in place."""
        entry = self.submit(tensor, name)
        self.group.wait(entry)
        if entry.error is not None:
            raise entry.error

    def close(self) -> None:
        self.group.end(EndKind.LEFT, Scope.of(PATIENCE_S))


def _works(member: Member) -> int:
    """The epoch of a member of a group whose sums are right."""
    size = member.size
    for step in range(3):
        tensor = np.full(1000, member.rank, np.float32)
        member.allreduce(tensor, "x")
        assert (tensor == size * (size - 1) // 2).all(), step
    return member.epoch


def _reduce_until_lost(member: Member, number: int) -> PeerLost:
    """Sums until a rank is lost; what else is in flight fails with the same error."""
    tensor = np.zeros(1 << 20, np.float32)
    alone = member.submit(np.zeros(8, np.float32), f"submitted by rank {member.rank} only")
    with pytest.raises(PeerLost) as raised:  # noqa: PT012 - some step raises
        for step in itertools.count():
            member.allreduce(tensor, "big")
            if step == 2:
                reached(f"busy {number}")
    member.group.wait(alone)
    assert isinstance(alone.error, PeerLost), repr(alone.error)
    assert alone.error.rank == raised.value.rank
    return raised.value


def _survive(meeting: Meeting, process: int, worlds: int, options: Settings, host: str) -> list[str]:
    """Processes 0 and 1 are in all worlds: with one that is killed, by themselves, and with the next two."""
    gradients = np.arange(1000, dtype=np.float32)
    shared: Array | None = None
    baseline, told = None, []
    for number in range(worlds):
        member = Member(meeting, process, 3 if number == 0 else 4, options, host)
        if shared is None and member.group.memory is not None:
            shared = np.asarray(member.group.memory.arena.allocate(4096)).view(np.float32)
            shared[:] = 7
        addresses = address_of(gradients), shared is not None and address_of(shared)
        error = _reduce_until_lost(member, number)
        lost_at = time.monotonic()
        told.append(f"epoch {member.epoch} lost rank {error.rank}")
        # The group that has failed is left while the next one is connected already.
        old, member = member, Member(meeting, process, 2, options, host)
        took_s = time.monotonic() - lost_at
        assert took_s < PROMPT_S
        with pytest.raises(PeerLost):
            old.submit(gradients, "late")
        old.close()
        told.append(f"epoch {_works(member)} works")
        assert (address_of(gradients), shared is not None and address_of(shared)) == addresses
        assert (gradients == np.arange(1000)).all()
        assert shared is None or (shared == 7).all()
        pause_at(f"small {number}")
        member.close()
        del old, member, error
        gc.collect()
        if number == 1:  # by now each has been on a host with another, and has its shared array
            baseline = holdings()
        assert baseline is None or not (left := left_since(baseline)), left
    return told


def _join_and_die(meeting: Meeting, process: int, worlds: int, options: Settings, host: str) -> None:
    """Process 2 is rank 2 of the first world; 3 and 4 are ranks 2 and 3 of the next, and so on. All are killed."""
    number = (process - 1) // 2
    pause_at("joining")
    member = Member(meeting, 2 if number == 0 else 2 + (process - 1) % 2, 3 if number == 0 else 4, options, host)
    _reduce_until_lost(member, number)


def _process(address: str, name: str, secret: str, worlds: int, plane: str, is_one_host: bool) -> Any:
    options = replace(Settings.read(), plane=plane)
    meeting = Meeting(Job(name, secret), address)
    process = Start.read().rank
    host = "h" if is_one_host else f"h{process % 2}"
    return (_survive if process < 2 else _join_and_die)(meeting, process, worlds, options, host)


@pytest.mark.parametrize(
    ("plane", "is_one_host"), [("auto", True), ("ring", True), ("zmq", True), ("auto", False)], ids=str
)
def test_survivors_go_on_in_the_next_epoch_and_others_join_them(plane: str, is_one_host: bool) -> None:
    worlds = 4
    job = Job.create()
    with (
        RendezvousServer(job, 3) as server,
        ProcessRanks(
            1 + 2 * worlds,
            _process,
            server.address,
            job.name,
            job.secret,
            worlds,
            plane,
            is_one_host,
            environ=NEVER_SILENT,
        ) as ranks,
    ):
        for number in range(worlds):
            new = [2] if number == 0 else [2 * number + 1, 2 * number + 2]
            ranks.wait_for("joining", *new)
            ranks.release(*new)
            ranks.wait_for(f"busy {number}", 0, 1, *new)
            server.expect(2)
            for process in new[1:]:  # both are lost, if there are two
                ranks.kill(process)
            ranks.kill(new[0])
            ranks.wait_for(f"small {number}", 0, 1)
            server.expect(4)
            ranks.release(0, 1)
        told = [outcome.result() for outcome in ranks.join()[:2]]
    for each in told:
        assert [line.split(" lost")[0] for line in each[::2]] == [f"epoch {2 * number}" for number in range(worlds)]
        assert each[1::2] == [f"epoch {2 * number + 1} works" for number in range(worlds)]
        assert each[0].endswith("lost rank 2")


def _die(member: Member) -> None:
    """Like a process that ends: its connections close, and nobody is told why, as no thread is left that could."""
    member.group.end(EndKind.EXITED, Scope.of(PATIENCE_S))
    member.group.end(EndKind.LEFT, Scope.of(0))


def test_a_rank_that_exits_delivers_the_end_of_its_group_first() -> None:
    """Peers that have not heard of it would take the exit for its cause."""
    job, options = Job.create(), Settings(peer_timeout=4 * PATIENCE_S)
    with RendezvousServer(job, 3) as server:
        meeting = Meeting(job, server.address)
        server.expect(3)
        members = thread_ranks(3, lambda rank: Member(meeting, rank, 3, options, f"h{rank}"))

        def part(rank: int) -> bool:
            if rank < 2:
                with pytest.raises(PeerLost):
                    members[rank].allreduce(np.zeros(8, np.float32), "x")
            group = members[rank].group
            with patch.object(group._link, "close") as close:
                group.end(EndKind.EXITED, Scope.of(PATIENCE_S))
            group.end(EndKind.LEFT, Scope.of(0))
            return close.called

        assert thread_ranks(3, part) == [True, True, False]


def test_a_hundred_rounds_of_ranks_that_are_threads_leave_nothing() -> None:
    """The same with threads as ranks: what remains of a round would show in this process."""
    job, options = Job.create(), Settings(peer_timeout=4 * PATIENCE_S)
    with RendezvousServer(job, 3) as server:
        meeting = Meeting(job, server.address)

        def world(size: int) -> list[Member]:
            server.expect(size)
            return thread_ranks(size, lambda rank: Member(meeting, rank, size, options))

        def round_of(number: int, size: int) -> None:
            members = world(size)

            def part(rank: int) -> str:
                if rank == size - 1:
                    _die(members[rank])
                    return ""
                with pytest.raises(PeerLost) as raised:
                    members[rank].allreduce(np.zeros(8, np.float32), "x")
                assert raised.value.rank == size - 1
                return ""

            assert thread_ranks(size, part) == [""] * size
            left = world(2)
            assert thread_ranks(2, lambda rank: _works(left[rank])) == [2 * number + 1] * 2
            thread_ranks(2, lambda rank: left[rank].close())
            thread_ranks(size - 1, lambda rank: members[rank].close())

        round_of(0, 3)
        gc.collect()
        before = holdings()
        for number in range(1, 101):
            round_of(number, 3 + number % 2)
        gc.collect()
        assert left_since(before) == []

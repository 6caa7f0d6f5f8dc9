"""The coordinators of a group's ranks: what they run, and how the group ends, message by message in one thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest

from hvdlite.control.link import ControlLink, Lost, Received
from hvdlite.engine.coordinator import Coordinator
from hvdlite.engine.executor import Executor
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.errors import HorovodInternalError, Mismatch, PeerLost, ShutDown
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import Batch, End, EndKind, Kind, Ready, Request, Run, Tuning
from hvdlite.negotiation.replica import Work
from hvdlite.negotiation.wire import Message, ProtocolError, decode, encode
from hvdlite.planes.base import Planes
from hvdlite.planes.local import LocalPlane
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.tensors.buffer import address_of
from hvdlite.tensors.dtypes import DType, Sum
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S


class Link(ControlLink):
    """One rank's end of links on which messages stay until the test moves them."""

    def __init__(self) -> None:
        self.sent: deque[bytes] = deque()
        self.received: deque[Received | Lost] = deque()
        self.error: Exception | None = None

    def send(self, message: Message) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append(encode(message, 0, 0))

    def receive(self) -> Iterator[Received | Lost]:
        while self.received:
            yield self.received.popleft()

    def close(self) -> None:
        """Nothing to close."""


class Rank:
    """A coordinator with an executor that runs batches when the test wants it to."""

    def __init__(self, rank: int, size: int, options: Settings) -> None:
        self.link = Link()
        self.in_flight = InFlight(lambda: None)
        self.observer = Observer(self.in_flight, list(range(size)))
        self.plane = LocalPlane()
        planes = Planes(cpu=self.plane)
        self.failures: list[str] = []
        self.executor = Executor(
            planes, self.in_flight, self.observer, lambda: None, lambda error: self.failures.append(str(error))
        )
        self.ends: list[End] = []
        self.coordinator = Coordinator(
            member(rank, "abcd"[:size]),
            options,
            self.link,
            planes,
            self.in_flight,
            self.executor,
            self.observer,
            self.ends.append,
        )

    def submit(self, *names: str, elements: int = 2) -> list[Entry]:
        entries = []
        for name in names:
            tensor = np.ones(elements, np.float32)
            request = Request(name, Kind.ALLREDUCE, DType.FLOAT32, (elements,), Sum, 1.0, 1.0, 0, True)
            entries.append(Entry(request, None, address_of(tensor), address_of(tensor), tensor.nbytes, tensor, tensor))
            self.in_flight.submit(entries[-1])
        return entries

    def agreed(self) -> list[list[str]]:
        """The names in each batch that was agreed and has not run."""
        return [[entry.name for entry in work.entries] for work in self.executor._unfinished]


class Ranks:
    """A group whose root is rank 0."""

    def __init__(self, size: int, options: Settings = Settings()) -> None:  # noqa: B008 - it is immutable
        self.ranks = [Rank(rank, size, options) for rank in range(size)]

    def __getitem__(self, rank: int) -> Rank:
        return self.ranks[rank]

    def send_up(self) -> None:
        """Delivers what the others sent to the root."""
        for number, rank in enumerate(self.ranks[1:], 1):
            self[0].link.received.extend((number, decode(frame, 0, 0)) for frame in rank.link.sent)
            rank.link.sent.clear()

    def send_down(self) -> None:
        """Delivers what the root sent to all others."""
        for frame in self[0].link.sent:
            for rank in self.ranks[1:]:
                rank.link.received.append((0, decode(frame, 0, 0)))
        self[0].link.sent.clear()

    def agree(self) -> None:
        """Every rank takes a turn, the root in the middle of what it needs for an answer."""
        for rank in self.ranks[1:]:
            rank.coordinator.turn()
        self.send_up()
        self[0].coordinator.turn()
        self.send_down()
        for rank in self.ranks[1:]:
            rank.coordinator.turn()

    def run(self) -> list[list[list[str]]]:
        """Runs what was agreed, and returns the names in the batches of each rank."""
        agreed = [rank.agreed() for rank in self.ranks]
        for rank in self.ranks:
            rank.executor.run_here()
        return agreed

    def close(self) -> None:
        for rank in self.ranks:
            assert rank.executor.close(Scope.of(PATIENCE_S))


@pytest.fixture
def two() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    ranks.close()


@pytest.fixture
def three() -> Iterator[Ranks]:
    ranks = Ranks(3)
    yield ranks
    ranks.close()


def errors(entries: list[Entry]) -> list[Any]:
    assert all(entry.is_done for entry in entries)
    return [entry.error for entry in entries]


def test_all_ranks_run_what_all_have_submitted_as_one_batch(three: Ranks) -> None:
    ran: list[list[Work]] = [[], [], []]
    for rank, works in zip(three.ranks, ran, strict=True):
        rank.observer.subscribe(works.append)
    for step in range(3):  # by name at first, and then by the bits of the names
        entries = [three[0].submit("a", "b"), three[1].submit("b", "a"), three[2].submit("a")]
        three.agree()
        assert three.run() == [[["a"]]] * 3, step
        entries[2] += three[2].submit("b")
        three.agree()
        assert three.run() == [[["b"]]] * 3, step
        assert [errors(each) for each in entries] == [[None, None]] * 3
        assert [works[-1].number for works in ran] == [2 * step + 2] * 3
    assert [work.arrival and work.arrival[2] for work in ran[0][1::2]] == [2] * 3
    assert three[0].observer.arrival is None
    assert set(three[1].coordinator.known) == {"a", "b"}


def test_tensors_accumulate_while_two_batches_have_not_run(two: Ranks) -> None:
    for name in "abcd":
        for rank in two.ranks:
            rank.submit(name)
        two.agree()
    assert two[0].agreed() == two[1].agreed() == [["a"], ["b"]]
    assert two[0].coordinator.decider.has_agreed
    assert not two[1].coordinator.decider.has_agreed
    two.run()
    two.agree()
    assert two.run() == [[["c", "d"]]] * 2
    assert not two[0].coordinator.decider.has_agreed


def test_ranks_that_disagree_get_the_same_error_and_the_group_goes_on(two: Ranks) -> None:
    entries = two[0].submit("a", elements=2) + two[1].submit("a", elements=3)
    two.agree()
    failed = errors(entries)
    assert isinstance(failed[0], Mismatch)
    assert str(failed[0]) == str(failed[1])
    assert "rank 0 has [2]; rank 1 has [3]" in str(failed[0])
    for rank in two.ranks:
        rank.submit("a")
    two.agree()
    assert two.run() == [[["a"]]] * 2


# ---- tuning


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_new_fusion_threshold_holds_from_the_same_batch_on_for_all_ranks(size: int) -> None:
    """The root changes it when a rank has the run before already, and another one has not."""
    ranks = Ranks(size)
    names = ("a", "b", "c", "d")

    def submit() -> None:
        for rank in ranks.ranks:
            rank.submit(*names)
            rank.coordinator.turn()
        ranks.send_up()
        ranks[0].coordinator.turn()

    submit()
    ranks.send_down()
    ranks[1].coordinator.turn()
    ranks[0].coordinator.decider.tune(Tuning(16))
    assert ranks[0].coordinator.tuning == ranks[1].coordinator.tuning == Tuning(Settings().fusion_threshold)
    assert ranks[size - 1].coordinator.tuning == (ranks[1].coordinator.tuning if size == 2 else None)
    for rank in ranks.ranks[2:]:
        rank.coordinator.turn()
    assert ranks.run() == [[["a", "b", "c", "d"]]] * size
    submit()
    assert ranks[0].coordinator.tuning == Tuning(16)
    assert ranks[1].coordinator.tuning == Tuning(Settings().fusion_threshold)  # it does not have this run yet
    ranks.send_down()
    for rank in ranks.ranks[1:]:
        rank.coordinator.turn()
    assert [rank.coordinator.tuning for rank in ranks.ranks] == [Tuning(16)] * size
    assert ranks.run() == [[["a", "b"], ["c", "d"]]] * size
    ranks.close()


def test_only_the_root_tunes(two: Ranks) -> None:
    with pytest.raises(ValueError, match="rank 0 tunes this group"):
        two[1].coordinator.decider.tune(Tuning(16))


# ---- the end


def test_what_was_agreed_still_runs_when_a_rank_leaves(two: Ranks) -> None:
    ran = [rank.submit("agreed")[0] for rank in two.ranks]
    two.agree()
    alone = two[1].submit("alone")
    two[1].coordinator.turn()
    two[1].coordinator.leave(EndKind.LEFT)
    assert not two[1].coordinator.has_ended.is_set()  # the root may still send runs
    assert not alone[0].is_done
    two.agree()
    left = End(EndKind.LEFT, 1, "b", "it left")
    for rank in two.ranks:
        assert rank.coordinator.has_ended.is_set()
        assert rank.coordinator.ended_by == left
        assert rank.ends == [left]
        assert rank.plane.error is None
    assert isinstance(errors(alone)[0], ShutDown)
    assert two.run() == [[["agreed"]]] * 2
    assert errors(ran) == [None, None]
    with pytest.raises(ShutDown, match="rank 1 on b has shut down"):
        two[0].submit("late")


def test_a_run_that_precedes_the_end_in_one_turn_is_run(two: Ranks) -> None:
    entries = [rank.submit("a")[0] for rank in two.ranks]
    two[1].coordinator.turn()
    two.send_up()
    two[0].coordinator.turn()
    two[0].coordinator.leave(EndKind.LEFT)
    two.send_down()
    two[1].coordinator.turn()
    assert two[1].coordinator.has_ended.is_set()
    assert two.run() == [[["a"]]] * 2
    assert errors(entries) == [None, None]


def test_a_rank_leaves_once_and_says_so_after_the_end_too(two: Ranks) -> None:
    two[0].coordinator.leave(EndKind.LEFT)
    two.send_down()
    two[1].coordinator.turn()
    for _ in range(2):
        two[1].coordinator.leave(EndKind.LEFT)
    two.send_up()
    assert list(two[0].link.received) == [(1, End(EndKind.LEFT, 1, "b", "it left"))]
    two[0].link.received.append(Lost(1, "its process ended"))
    two[0].coordinator.turn()
    two[0].coordinator.leave(EndKind.LEFT)
    assert two[0].ends == [End(EndKind.LEFT, 0, "a", "it left")]
    assert two[0].plane.error is None  # rank 1 is not lost: it had left


def test_a_lost_rank_ends_the_group_for_all_others(three: Ranks) -> None:
    agreed = [rank.submit("agreed")[0] for rank in three.ranks]
    three.agree()
    waiting = three[0].submit("a") + three[1].submit("a")
    three.agree()
    three[0].link.received.append(Lost(2, "its process ended"))
    three.agree()
    for rank in three.ranks[:2]:
        assert isinstance(rank.plane.error, PeerLost)
        assert rank.ends == [End(EndKind.LOST, 2, "c", "its process ended")]
    assert [str(error) for error in errors(waiting)] == [str(three[0].plane.error)] * 2
    assert not agreed[0].is_done  # it is the executor's, whose plane is aborted
    three[0].executor.run_here()
    assert isinstance(agreed[0].error, PeerLost)


def test_what_was_agreed_still_runs_when_a_rank_that_owes_nothing_is_gone(three: Ranks) -> None:
    agreed = [rank.submit("agreed")[0] for rank in three.ranks]
    three.agree()
    waiting = three[0].submit("a") + three[1].submit("a")
    three.agree()
    three[2].coordinator.exit()
    three.agree()
    assert not any(rank.ends for rank in three.ranks)  # before the process has ended
    three[0].link.received.append(Lost(2, "its process ended"))
    three.agree()
    for rank in three.ranks[:2]:
        assert rank.plane.error is None
        assert rank.ends == [End(EndKind.GONE, 2, "c", "its process ended")]
    assert [type(error) for error in errors(waiting)] == [PeerLost] * 2
    assert three.run() == [[["agreed"]]] * 3
    assert errors(agreed) == [None] * 3


def test_who_is_lost_after_another_one_has_gone_aborts_what_still_runs(three: Ranks) -> None:
    agreed = [rank.submit("agreed")[0] for rank in three.ranks]
    three.agree()
    three[2].coordinator.exit()
    three.agree()
    three[0].link.received += [Lost(2, "its process ended"), Lost(1, "no answer")]
    three.agree()
    three[0].executor.run_here()
    assert isinstance(agreed[0].error, PeerLost)
    assert agreed[0].error.rank == 1


@pytest.mark.parametrize(("plane", "is_aborted"), [("shm", True), ("ring", False)])
def test_what_still_runs_without_the_root_has_a_limit_unless_the_plane_notices_losses(
    plane: str, is_aborted: bool
) -> None:
    two = Ranks(2, Settings(peer_timeout=0.0))
    agreed = [rank.submit("agreed")[0] for rank in two.ranks]
    two.agree()
    two[0].coordinator.exit()
    two.send_down()
    two[1].link.received.append(Lost(0, "its process ended"))
    with patch.object(LocalPlane, "name", plane):
        two[1].coordinator.turn()
        two[1].coordinator.turn()
    assert two[1].coordinator.due is None
    assert [end.kind for end in two[1].ends] == [EndKind.GONE]
    assert isinstance(two[1].plane.error, PeerLost) == is_aborted
    two.run()
    assert [type(error) for error in errors(agreed)] == [type(None), PeerLost if is_aborted else type(None)]
    two.close()


def test_what_still_runs_without_the_root_is_given_time(two: Ranks) -> None:
    agreed = [rank.submit("agreed")[0] for rank in two.ranks]
    two.agree()
    two[0].coordinator.exit()
    two.send_down()
    two[1].link.received.append(Lost(0, "its process ended"))
    two[1].coordinator.turn()
    assert two[1].coordinator.due is not None
    two.run()
    assert errors(agreed) == [None, None]


def test_who_is_gone_in_another_group_is_lost_in_this_one(two: Ranks) -> None:
    two[0].coordinator.end(End(EndKind.GONE, 7, "elsewhere", "its process ended"))
    two.agree()
    assert [[end.kind for end in rank.ends] for rank in two.ranks] == [[EndKind.LOST]] * 2


def test_nobody_says_that_another_rank_exits(three: Ranks) -> None:
    three[0].link.received.append((1, End(EndKind.EXITED, 2, "c", "its process ended")))
    with pytest.raises(ProtocolError, match="rank 1 sent the exit of rank 2"):
        three[0].coordinator.turn()


def test_a_failure_of_a_rank_counts_there_at_once_and_then_everywhere(three: Ranks) -> None:
    waiting = [rank.submit("a")[0] for rank in three.ranks[1:]]
    three.agree()
    three[1].coordinator.fail("out of memory")
    assert three[1].coordinator.has_ended.is_set()
    assert isinstance(three[1].plane.error, HorovodInternalError)
    three.agree()
    assert [str(error) for error in errors(waiting)] == ["rank 1 on b failed: out of memory"] * 2
    assert [rank.ends for rank in three.ranks] == [[End(EndKind.FAILED, 1, "b", "out of memory")]] * 3


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (PeerLost(2, "c", "reset"), End(EndKind.LOST, 2, "c", "reset")),
        (HorovodInternalError("a bug"), End(EndKind.FAILED, 1, "b", "a bug")),
    ],
    ids=["the plane noticed a lost peer", "a batch failed"],
)
def test_a_batch_that_failed_ends_the_group_for_its_cause(three: Ranks, error: Any, end: End) -> None:
    three[1].coordinator.batch_failed(error)
    three.agree()
    assert [rank.ends for rank in three.ranks] == [[end]] * 3


def test_a_run_that_crosses_a_failure_is_not_run(two: Ranks) -> None:
    entries = [rank.submit("a")[0] for rank in two.ranks]
    two[1].coordinator.turn()
    two.send_up()
    two[0].coordinator.turn()
    two.send_down()
    two[1].coordinator.fail("out of memory")
    two[1].coordinator.turn()
    assert two[1].agreed() == []
    assert str(errors(entries[1:])[0]) == "rank 1 on b failed: out of memory"


def test_the_root_runs_nothing_after_an_end(two: Ranks) -> None:
    for rank in two.ranks:
        rank.submit("a")
        rank.coordinator.turn()
    two[0].coordinator.end(End(EndKind.REMOVED, 0, "a", "it left"))
    two.send_up()
    two[0].coordinator.turn()
    assert not two[0].coordinator.decider.has_agreed
    assert two[0].agreed() == []
    assert [type(decode(frame, 0, 0)) for frame in two[0].link.sent] == [End]


def test_the_end_of_another_group_ends_this_one_unless_it_has_ended(two: Ranks) -> None:
    lost, left = End(EndKind.LOST, 7, "elsewhere", "reset"), End(EndKind.LEFT, 8, "elsewhere", "it left")
    two[0].coordinator.end(lost)
    two[0].coordinator.end(left)
    assert len(two[0].link.sent) == 1
    two.agree()
    assert [rank.ends for rank in two.ranks] == [[lost]] * 2


def test_the_group_ends_here_even_if_nobody_can_be_informed(two: Ranks) -> None:
    two[0].link.error = OSError("no route")
    waiting = two[0].submit("a")
    with pytest.raises(OSError, match="no route"):
        two[0].coordinator.fail("out of memory")
    assert two[0].coordinator.has_ended.is_set()
    assert isinstance(errors(waiting)[0], HorovodInternalError)


@pytest.mark.parametrize(
    ("rank", "message"), [(0, Run(0, (Batch(0, ()),))), (1, Ready(0, 1, ()))], ids=["a run", "a ready"]
)
def test_a_message_that_its_sender_must_not_send_is_refused(two: Ranks, rank: int, message: Message) -> None:
    two[rank].link.received.append((1 - rank, message))
    with pytest.raises(ProtocolError, match=f"rank {1 - rank} sent a message that it must not send"):
        two[rank].coordinator.turn()


def test_what_a_timeline_needs_is_kept_only_if_it_is_wanted(two: Ranks) -> None:
    (entry,) = two[1].submit("a")
    two[1].coordinator.turn()
    assert not hasattr(entry, "sent_at")
    two[1].observer.keep_times(True)
    two[1].observer.on_turn = on_turn = Mock()
    (entry,) = two[1].submit("b")
    two[1].coordinator.turn()
    assert entry.sent_at == two[1].observer.sent_at
    on_turn.assert_called_once_with()

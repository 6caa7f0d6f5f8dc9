"""Blocking all-reduces of tensors in memory that all ranks share, or that are staged there: one native call."""

from __future__ import annotations

import itertools
import threading
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.engine.calls import Calls
from hvdlite.session import current
from tests.harness import pause_at, process_ranks, reached
from tests.harness.patience import until
from tests.harness.processes import ProcessRanks

_LENGTHS = (8_192, 16_383, 16_384, 20_001, 131_072, 300_001)
_OFTEN = 131_072  # so that it is staged in some calls, and moves in parts in others
_ALL = 0xFF


def _array(shared: int, length: int, dtype: str) -> Any:
    """Of this rank, in memory that all share if the rank's bit is in ``shared``."""
    is_shared = shared >> hvd.rank() & 1
    return hvd.shared_empty(length, dtype) if is_shared else np.empty(length, dtype)


def _sums(shared: int) -> tuple[list[bytes], int]:
    """The results, and how many calls of tensors that fit into no slots were done."""
    hvd.init()
    results, done = [], []
    values = np.random.default_rng(hvd.rank()).normal(size=_LENGTHS[-1] + 3) * 9
    finish = Calls._finish

    def counted(calls: Calls, entries: Any, *arguments: Any) -> None:
        done.extend(entry.nbytes for entry in entries)
        finish(calls, entries, *arguments)

    with patch.object(Calls, "_finish", counted):
        for dtype, op in (("float32", hvd.Sum), ("float64", hvd.Average), ("int16", hvd.Max), ("float16", hvd.Sum)):
            for length in _LENGTHS:
                array = _array(shared, length, dtype)
                for step in range(20 if length == _OFTEN else 3):
                    array[:] = values[step : step + length]
                    hvd.allreduce_(array, name=f"{dtype} {length}", op=op, prescale_factor=0.5 if op == hvd.Sum else 1)
                    results.append(array.tobytes())
    assert current().everyone.memory.arena.is_shared
    hvd.shutdown()
    return results, sum(nbytes > 576 << 10 for nbytes in done)


@pytest.mark.parametrize(("count", "spin"), [(2, "-1"), (3, "20"), (5, "-1")])
def test_results_have_the_same_bits_whichever_ranks_share_the_tensors(count: int, spin: str) -> None:
    outcomes = {
        (page, shared): [
            outcome.result()
            for outcome in process_ranks(count, _sums, shared, environ={"HVDLITE_PAGE": page, "HVDLITE_SPIN": spin})
        ]
        for page, shared in (("0", 0), ("1", _ALL), ("1", 0), ("1", 1), ("1", _ALL ^ 2))
    }
    expected = outcomes["0", 0][0][0]
    for ranks in outcomes.values():
        assert [results == expected for results, _ in ranks] == [True] * count
    for (page, _), ranks in outcomes.items():  # tensors that are elsewhere are staged
        assert all((done > 0) == (page == "1") for _, done in ranks)


def _others_share() -> int:
    """Rank 0 shares another tensor under the name in each step, and every third of its tensors is its own."""
    hvd.init()
    arrays = [hvd.shared_empty(40_000), np.empty(40_000, np.float32), hvd.shared_empty(50_000)[7:40_007]]
    for step in range(60):
        array = arrays[step % 3 if hvd.rank() == 0 else 0]
        array[:] = hvd.rank() + step
        hvd.allreduce_(array, name="a", op=hvd.Sum)
        assert (array == sum(range(hvd.size())) + step * hvd.size()).all()
        if step % 5 == 0:
            hvd.allgather(np.ones(3), name="b")
    hvd.shutdown()
    return 0


@pytest.mark.parametrize("count", [2, 3])
def test_a_name_may_be_shared_in_some_calls_only(count: int) -> None:
    for outcome in process_ranks(count, _others_share):
        outcome.result()


def _in_process_sets() -> None:
    hvd.init()
    odd = hvd.add_process_set([rank for rank in range(hvd.size()) if rank % 2])
    both = hvd.add_process_set([0, hvd.size() - 1])
    for _ in range(5):
        for process_set in (odd, both, hvd.global_process_set):
            if process_set.included():
                array = hvd.shared_empty(100_000)
                array[:] = hvd.rank()
                hvd.allreduce_(array, name="a", op=hvd.Sum, process_set=process_set)
                assert (array == sum(process_set.ranks)).all()
    hvd.shutdown()


def test_process_sets_share_the_same_memory() -> None:
    for outcome in process_ranks(4, _in_process_sets):
        outcome.result()


def _loses_one(is_staged: bool) -> tuple[int, bool]:
    """Rank 2 stays away from a call in which the others have shared their tensors."""
    hvd.init()
    array = np.empty(200_000, np.float32) if is_staged else hvd.shared_empty(200_000)
    for _ in range(5):  # so few that staging is not compared with parts
        array[:] = 1
        hvd.allreduce_(array, name="a", op=hvd.Sum)
    array[:] = hvd.rank()
    arena = current().everyone.memory.arena
    if hvd.rank() == 2:
        pause_at("shares")
    threading.Thread(target=_reports_when_it_shares).start()
    try:
        hvd.allreduce_(array, name="a", op=hvd.Sum)
    except hvd.PeerLost as error:
        reached("lost")
        assert (array == hvd.rank()).all()
        hvd.shutdown()
        return error.rank, arena.is_shared
    raise AssertionError


def _reports_when_it_shares() -> None:
    page = current().everyone._link.page
    until(lambda: page._library.hvd_page_is_sharing(page.handle))
    reached("shares")


@pytest.mark.parametrize("is_staged", [False, True])
def test_memory_is_private_once_a_call_has_failed(is_staged: bool) -> None:
    """Otherwise a rank that is late could still write its part into it."""
    with ProcessRanks(3, _loses_one, is_staged) as ranks:
        ranks.wait_for("shares")
        killed = ranks.kill(2)
        outcomes = ranks.join()
        for rank in range(2):
            assert outcomes[rank].result() == (2, False)
            assert ranks.time_of("lost", rank) - killed < 5.0


def _loses_one_that_calls() -> int:
    hvd.init()
    array = hvd.shared_empty(1 << 21)
    for step in itertools.count():
        array[:] = 1
        try:
            hvd.allreduce_(array, name="a", op=hvd.Sum)
        except hvd.PeerLost as error:
            reached("lost")
            array[:] = 5
            hvd.shutdown()
            assert (array == 5).all()
            return error.rank
        assert (array == hvd.size()).all()
        if step == 20:
            reached("ready")
    raise AssertionError


@pytest.mark.parametrize("count", [2, 3])
def test_a_rank_that_dies_while_it_reduces_ends_the_calls_of_the_others(count: int) -> None:
    for _ in range(3):
        with ProcessRanks(count, _loses_one_that_calls, environ={"HVDLITE_SPIN": "20"}) as ranks:
            ranks.wait_for("ready")
            killed = ranks.kill(count - 1)
            outcomes = ranks.join()
            for rank in range(count - 1):
                assert outcomes[rank].result() == count - 1
                assert ranks.time_of("lost", rank) - killed < 5.0

"""The shared-memory plane in real processes, one of which is killed or stopped in the middle of a collective."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np
import pytest

from hvdlite.errors import PeerLost
from hvdlite.memory.segment import SegmentOffer, create, fetch
from hvdlite.planes.shm.plane import ShmPlane, geometry
from hvdlite.scope import Scope
from hvdlite.settings import Settings, Start
from hvdlite.tensors.dtypes import DType, Sum
from tests.contract.planes import spans_of
from tests.contract.test_programs import COLLECTIVES
from tests.harness import ProcessRanks, pause_at, reached
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S

_TOKEN = b"the ranks of this test"
_ELEMENTS = 1 << 20


@contextmanager
def two_ranks(work: object, *arguments: str) -> Iterator[ProcessRanks]:
    """Two processes that run ``work(address, *arguments)`` and can fetch one segment from there."""
    fd = create(geometry(Settings(), 2).nbytes)
    try:
        with (
            SegmentOffer(fd, _TOKEN) as offer,
            ProcessRanks(2, work, offer.address, *arguments) as ranks,  # type: ignore[arg-type]
        ):
            offer.serve(2, Scope.of(PATIENCE_S))
            yield ranks
    finally:
        os.close(fd)


def open_own_plane(address: str) -> ShmPlane:
    members = member(Start.read().rank, "aa")
    return ShmPlane(members, Settings.read(), fetch(address, _TOKEN, Scope.of(PATIENCE_S)))


def allreduce_ones(plane: ShmPlane, array: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
    array.fill(1)
    plane.allreduce(spans_of((array, array)), DType.FLOAT32, Sum, 1.0, 1.0)
    assert (array == 2).all()


def repeat_until_aborted(address: str, collective: str) -> tuple[str, float]:
    """Runs it for ever; the main thread aborts when the test says so. The error and how long after the abort."""
    run = next(run for run in COLLECTIVES if run.__name__ == collective)
    with closing(open_own_plane(address)) as plane:
        ended: list[str] = []

        def repeat() -> None:
            try:
                run(plane, _ELEMENTS, 0)
                reached("repeating")
                while True:
                    run(plane, _ELEMENTS, 0)
            except PeerLost as error:
                ended.append(str(error))

        worker = threading.Thread(target=repeat, daemon=True)
        worker.start()
        pause_at("ready to abort")
        plane.abort(PeerLost(1, "here", "killed by the test"))
        worker.join(PATIENCE_S)
        return ended[0]


@pytest.mark.parametrize("collective", ["allreduce", "reducescatter", "alltoall"])
def test_a_survivor_of_sigkill_ends_by_abort(collective: str) -> None:
    with two_ranks(repeat_until_aborted, collective) as ranks:
        ranks.wait_for("repeating")
        ranks.wait_for("ready to abort", 0)
        ranks.kill(1)
        ranks.release(0)
        survivor, victim = ranks.join()
    assert "rank 1 on here was lost: killed by the test" in survivor.result()
    assert victim.exit_code == -signal.SIGKILL


def reduce_in_turns(address: str) -> int:
    with closing(open_own_plane(address)) as plane:
        array = np.empty(_ELEMENTS, np.float32)
        for turn in range(100):
            allreduce_ones(plane, array)
            if turn == 2:
                reached("reducing")
        return 100


def test_ranks_complete_after_one_was_stopped_for_a_second() -> None:
    with two_ranks(reduce_in_turns) as ranks:
        ranks.wait_for("reducing")
        stopped_at = ranks.send_signal(1, signal.SIGSTOP)
        time.sleep(1.0)  # the length of the fault, not a synchronisation
        ranks.send_signal(1, signal.SIGCONT)
        outcomes = ranks.join()
    assert [outcome.result() for outcome in outcomes] == [100, 100]
    assert outcomes[0].ended_at - stopped_at > 1.0, "rank 0 did not wait for the stopped rank"

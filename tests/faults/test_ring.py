"""The ring among real processes, one of which is killed or stopped in the middle of a collective."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from hvdlite.errors import PeerLost
from hvdlite.planes.ring.plane import RingPlane
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.tensors.dtypes import DType, Sum
from tests.contract.planes import spans_of
from tests.harness import ProcessRanks, pause_at, reached
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S

SIZE = 3
BYTES = 32 << 20


def open_ring(folder: str) -> RingPlane:
    """This process's rank of a ring of SIZE; every rank pauses at ``listening``, with its address in ``folder``."""
    rank, secret = int(os.environ["HVDLITE_RANK"]), bytes.fromhex(os.environ["HVDLITE_SECRET"])
    options = Settings(ring_chunk=256 << 10, ring_window=4, progress_timeout=PATIENCE_S)
    plane = RingPlane(member(rank, "abc", secret), options)
    Path(folder, str(rank)).write_text(plane.address)
    pause_at("listening")
    plane.connect(Path(folder, str((rank + 1) % SIZE)).read_text(), Scope.of(PATIENCE_S))
    return plane


def reduce_repeatedly(plane: RingPlane, times: int) -> int:
    """All-reduces of ones, at most ``times``; the number that were wrong."""
    array = np.empty(BYTES // 4, np.float32)
    wrong = 0
    for turn in range(times):
        array.fill(1)
        if turn == 1:
            reached("moving")
        plane.allreduce(spans_of((array, array)), DType.FLOAT32, Sum, 1.0, 1.0)
        wrong += not (array == SIZE).all()
    return wrong


def reduce_for_a_while(folder: str, times: int) -> int:
    with closing(open_ring(folder)) as plane:
        return reduce_repeatedly(plane, times)


def reduce_until_aborted(folder: str) -> str:
    """Reduces until another thread aborts, as the control plane does; the error."""
    plane = open_ring(folder)

    def watch() -> None:
        pause_at("watching")
        plane.abort(PeerLost(1, "here", "killed"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        reduce_repeatedly(plane, 1_000_000)
    except PeerLost as error:
        return str(error)
    finally:
        watcher.join()
        plane.close()
    raise AssertionError("the collective went on without rank 1")


def test_a_killed_neighbour_and_an_abort_end_the_collective_at_once(tmp_path: Path) -> None:
    with ProcessRanks(SIZE, reduce_until_aborted, str(tmp_path)) as ranks:
        ranks.wait_for("listening")
        ranks.release()
        ranks.wait_for("moving")
        ranks.kill(1)
        ranks.wait_for("watching", 0, 2)
        ranks.release(0, 2)
        outcomes = ranks.join()
    assert outcomes[1].exit_code == -signal.SIGKILL
    for rank in (0, 2):
        assert "rank 1 on here was lost: killed" in outcomes[rank].result()


def test_a_stopped_neighbour_only_delays(tmp_path: Path) -> None:
    with ProcessRanks(SIZE, reduce_for_a_while, str(tmp_path), 5) as ranks:
        ranks.wait_for("listening")
        ranks.release()
        ranks.wait_for("moving")
        ranks.send_signal(1, signal.SIGSTOP)
        time.sleep(1.0)  # the length of the fault
        ranks.send_signal(1, signal.SIGCONT)
        assert [outcome.result() for outcome in ranks.join()] == [0, 0, 0]

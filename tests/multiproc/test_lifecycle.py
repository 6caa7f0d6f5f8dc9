"""Sessions begin and end: late ranks, a hundred sessions, shutting down with work pending, and threads."""

from __future__ import annotations

import itertools
import os
import signal
import threading

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.engine import executor
from hvdlite.engine.batch import run
from hvdlite.negotiation.replica import Work
from hvdlite.planes.base import Completion, Planes
from hvdlite.session import current
from tests.harness import ProcessRanks, pause_at, process_ranks, reached
from tests.harness.alarms import act_in_a_wait, signal_to_another_thread
from tests.harness.effort import Effort
from tests.harness.patience import PATIENCE_S


def _a_hundred_sessions() -> int:
    for _ in range(100):
        hvd.init()
        assert hvd.allreduce(np.ones(3), op=hvd.Sum)[0] == hvd.size()
        hvd.shutdown()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("plane", ["shm", "ring"])
def test_a_hundred_sessions_in_one_process(plane: str) -> None:
    for outcome in process_ranks(2, _a_hundred_sessions, environ={"HVDLITE_PLANE": plane}):
        assert outcome.result() < 30  # descriptors


LATE_S = 2.0


def _late() -> str:
    hvd.init()
    if hvd.rank() == 1:
        pause_at("late")
    reached("submitting")
    effort = Effort()
    hvd.allreduce(np.ones(1 << 16), name="x")
    excess = effort.excess(wakes=100, within_s=LATE_S)
    hvd.shutdown()
    return excess


def test_a_rank_that_is_seconds_late_is_waited_for_without_cpu() -> None:
    with ProcessRanks(2, _late) as ranks:
        ranks.wait_for("late", 1)
        ranks.wait_for("submitting", 0)
        threading.Event().wait(LATE_S)
        ranks.release(1)
        assert [outcome.result() for outcome in ranks.join()] == ["", ""]


def _not_all_come() -> None:
    pause_at("started")
    hvd.init()


def test_init_names_the_rank_that_did_not_come() -> None:
    with ProcessRanks(3, _not_all_come, environ={"HVDLITE_START_TIMEOUT": "3"}) as ranks:
        ranks.wait_for("started")
        ranks.release(0, 2)
        ranks.wait_for_end(0, 2)
        ranks.kill(1)
        outcomes = ranks.join()
    for rank in (0, 2):
        assert outcomes[rank].error == "HorovodInternalError"
        assert "rank(s) 1 did not call it" in outcomes[rank].message


def _leave_with_work_pending() -> str:
    hvd.init()
    if hvd.rank() == 1:
        pending = hvd.allreduce_async(np.ones(3), name="only on rank 1")
        hvd.shutdown()
        with pytest.raises(hvd.ShutDown, match="rank 1"):
            hvd.synchronize(pending)
        return "left"
    with pytest.raises(hvd.ShutDown) as caught:
        hvd.allreduce(np.ones(3), name="not on rank 1")
    assert caught.value.rank == 1
    with pytest.raises(hvd.ShutDown):
        hvd.allreduce(np.ones(3))
    hvd.shutdown()
    hvd.shutdown()
    return "told"


@pytest.mark.parametrize("plane", ["shm", "ring"])
def test_a_rank_that_leaves_fails_what_is_pending_everywhere(plane: str) -> None:
    values = [
        outcome.result() for outcome in process_ranks(3, _leave_with_work_pending, environ={"HVDLITE_PLANE": plane})
    ]
    assert values == ["told", "left", "told"]


def _root_leaves_first() -> str:
    hvd.init()
    hvd.allreduce(np.ones(1 << 20))
    if hvd.rank() == 0:
        hvd.shutdown()
        return "left"
    with pytest.raises(hvd.ShutDown) as caught:
        hvd.allreduce(np.ones(3))
    assert caught.value.rank == 0
    hvd.shutdown()
    return "told"


def test_rank_0_may_leave_first() -> None:
    assert [o.result() for o in process_ranks(3, _root_leaves_first)] == ["left", "told", "told"]


def _threads() -> str:
    hvd.init()
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for turn in range(30):
                got = hvd.allreduce(np.full(100, 1.0), name=f"{thread} {turn}", op=hvd.Sum)
                np.testing.assert_array_equal(got, hvd.size())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hvd.shutdown()
    assert not errors
    return "ok"


def test_several_threads_submit_at_once() -> None:
    assert [outcome.result() for outcome in process_ranks(2, _threads)] == ["ok", "ok"]


def _interrupted() -> str:
    hvd.init()
    if hvd.rank() == 0:
        receiver = signal_to_another_thread(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            hvd.allreduce(np.ones(3), name="x")
        receiver.join()
        reached("interrupted")
    else:
        pause_at("waiting")
        hvd.allreduce(np.ones(3), name="x")
    np.testing.assert_array_equal(hvd.allreduce(np.ones(3), name="y", op=hvd.Sum), 2.0)
    hvd.shutdown()
    return "ok"


def test_ctrl_c_ends_a_wait_at_once_and_not_the_session() -> None:
    with ProcessRanks(2, _interrupted) as ranks:
        ranks.wait_for("interrupted", 0)
        ranks.release(1)
        assert [outcome.result() for outcome in ranks.join()] == ["ok", "ok"]


def _shut_down_in_a_handler() -> str:
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        pause_at("waiting")
    else:
        act_in_a_wait(hvd.shutdown, 0.2)
        with pytest.raises(hvd.ShutDown):
            hvd.allreduce(np.ones(3), name="x")
        reached("over")
        assert not hvd.is_initialized()
    return "ok"


@pytest.mark.parametrize("plane", ["shm", "ring"])
def test_a_signal_handler_may_shut_down_in_the_middle_of_a_wait(plane: str) -> None:
    with ProcessRanks(2, _shut_down_in_a_handler, environ={"HVDLITE_PLANE": plane}) as ranks:
        ranks.wait_for("over", 0)
        ranks.release(1)
        assert [outcome.result() for outcome in ranks.join()] == ["ok", "ok"]


def _no_shutdown() -> str:
    hvd.init()
    hvd.allreduce(np.ones(3))
    return "ok"


def test_exiting_without_shutdown_is_clean() -> None:
    for outcome in process_ranks(3, _no_shutdown):
        assert outcome.result() == "ok"
        assert outcome.exit_code == 0
        assert outcome.output == ""


def _exit_right_after_the_last_collective(count: int) -> int:
    hvd.init()
    tensor = np.ones(count, np.float32)
    for _ in range(5):
        hvd.allreduce_(tensor, op=hvd.Max)
    return int(tensor.sum())


def _exits_before_the_others_have_received(exiting: int) -> str:
    hvd.init()
    group = current().everyone
    tensor = np.full(3, hvd.rank(), np.float32)
    hvd.allreduce(tensor, name="first")
    if hvd.rank() == 2:  # in a ring the only one that passes the tensor of rank 1 on to rank 0

        def held(work: Work, planes: Planes) -> Completion | None:
            pause_at("holding")
            return run(work, planes)

        executor.run = held  # type: ignore[attr-defined]
    ended = threading.Event()
    group.when_ended(lambda _: ended.set())
    handle = hvd.broadcast_async_(tensor, root_rank=exiting, name="x")
    if hvd.rank() != exiting:
        ended.wait(PATIENCE_S)
        reached("bereft")
        hvd.synchronize(handle)
        assert tensor.tolist() == [exiting] * 3
        with pytest.raises(hvd.PeerLost, match=f"rank {exiting} on .* its process ended"):
            hvd.allreduce(tensor, name="y")
    else:
        hvd.synchronize(handle)
    return "ok"


@pytest.mark.parametrize(
    ("plane", "hosts", "exiting"),
    [*itertools.product(("ring", "zmq"), ("aaa", "aab", "abb", "abc"), (1,)), ("shm", "aaa", 0)],
)
def test_what_was_sent_before_an_exit_arrives_though_the_exit_is_noticed_first(
    plane: str, hosts: str, exiting: int
) -> None:
    environ = {rank: {"HVDLITE_HOSTID": host} for rank, host in enumerate(hosts)}
    with ProcessRanks(
        3,
        _exits_before_the_others_have_received,
        exiting,
        environ={"HVDLITE_PLANE": plane, "HVDLITE_PAGE": str(int(plane == "ring"))},
        environ_by_rank=environ,
    ) as ranks:
        ranks.wait_for("holding", 2)
        ranks.wait_for_end(exiting)
        ranks.wait_for("bereft", 1 - exiting)
        ranks.release(2)
        assert [outcome.result() for outcome in ranks.join()] == ["ok"] * 3


@pytest.mark.parametrize("count", [3, 1 << 20])
@pytest.mark.parametrize("plane", ["shm", "ring"])
def test_a_rank_that_exits_first_still_delivers_what_it_sent(plane: str, count: int) -> None:
    for _ in range(3):
        outcomes = process_ranks(3, _exit_right_after_the_last_collective, count, environ={"HVDLITE_PLANE": plane})
        assert [(outcome.result(), outcome.exit_code) for outcome in outcomes] == [(count, 0)] * 3

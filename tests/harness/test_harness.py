"""The harness itself: its reports of ranks that return, raise, die, stop or hang, and of tests that leak."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import zmq

from tests.harness import ProcessRanks, RanksTimedOut, leaks, pause_at, process_ranks, reached, thread_ranks


def test_threads_return_in_rank_order_and_reraise_the_first_error() -> None:
    barrier = threading.Barrier(3)

    def work(rank: int) -> int:
        barrier.wait(5)
        if rank == 9:
            raise KeyError(rank)
        return rank * rank

    assert thread_ranks(3, work) == [0, 1, 4]

    def fail(rank: int) -> None:
        if rank == 1:
            raise KeyError("broken")

    with pytest.raises(KeyError, match="broken") as caught:
        thread_ranks(2, fail)
    assert caught.value.__notes__ == ["raised on rank 1"]


def test_a_hanging_thread_is_named_with_its_stack() -> None:
    released = threading.Event()

    def hang_on_rank_1(rank: int) -> None:
        if rank == 1:
            released.wait(10)

    with pytest.raises(TimeoutError, match=r"rank-1 still running after 0.2 s[\s\S]*hang_on_rank_1"):
        thread_ranks(2, hang_on_rank_1, deadline_s=0.2)
    released.set()


def _describe(factor: int) -> tuple[int, str, str]:
    if os.environ["HVDLITE_RANK"] == "2":
        error = ValueError("no such thing")
        error.rank = 7  # type: ignore[attr-defined]
        raise error
    return factor * int(os.environ["HVDLITE_SIZE"]), os.environ["HVDLITE_HOSTID"], os.environ["HVDLITE_CROSS_RANK"]


def test_processes_report_values_and_errors_by_rank() -> None:
    hosts = {rank: {"HVDLITE_HOSTID": "ab"[rank // 2]} for rank in range(3)}
    outcomes = process_ranks(3, _describe, 5, environ_by_rank=hosts)
    assert [outcome.result() for outcome in outcomes[:2]] == [(15, "a", "0"), (15, "a", "0")]
    failed = outcomes[2]
    assert (failed.error, failed.message, failed.details["rank"]) == ("ValueError", "no such thing", 7)
    assert failed.exit_code == 1
    assert "no such thing" in failed.output
    with pytest.raises(AssertionError, match="rank 2 failed with ValueError: no such thing"):
        failed.result()


def _wait_to_be_killed() -> None:
    reached("started")
    if os.environ["HVDLITE_RANK"] == "1":
        pause_at("victim")


def test_a_rank_can_be_killed_at_a_point() -> None:
    with ProcessRanks(2, _wait_to_be_killed) as ranks:
        ranks.wait_for("started")
        ranks.wait_for("victim", 1)
        killed_at = ranks.kill(1)
        outcomes = ranks.join()
        assert ranks.time_of("victim", 1) <= killed_at
    assert outcomes[1].exit_code == -signal.SIGKILL
    assert outcomes[1].ended_at is None
    assert outcomes[0].exit_code == 0
    assert outcomes[0].result() is None


def test_a_paused_rank_goes_on_when_released() -> None:
    with ProcessRanks(2, _wait_to_be_killed) as ranks:
        ranks.wait_for("victim", 1)
        ranks.release(1)
        assert [outcome.result() for outcome in ranks.join()] == [None, None]


def _hang_in_a_named_function() -> None:
    reached("hanging")
    time.sleep(60)


def test_ranks_that_hang_or_are_stopped_print_their_stacks_and_are_killed() -> None:
    with ProcessRanks(2, _hang_in_a_named_function, deadline_s=3.0) as ranks:
        ranks.wait_for("hanging")
        ranks.send_signal(0, signal.SIGSTOP)
        with pytest.raises(RanksTimedOut) as caught:
            ranks.join()
        pids = [ranks.pid(0), ranks.pid(1)]
    for rank in (0, 1):
        report = str(caught.value).split(f"--- rank {rank}:")[1]
        assert "still running; points reached: hanging" in report
        assert "_hang_in_a_named_function" in report
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("children", ["children", "missing"])
def test_the_leak_guard_names_what_is_left(children: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "_CHILDREN", children)
    before = leaks.holdings()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    memory = os.memfd_create("hvdlite-leaked")
    released = threading.Event()
    thread = threading.Thread(target=released.wait, args=(10,), name="left-thread")
    thread.start()
    orphan_maker = "import subprocess; subprocess.Popen(['sleep', '60'])"
    subprocess.run([sys.executable, "-c", orphan_maker], check=True)
    try:
        left = "\n".join(leaks.left_since(before, patience_s=0.0))
        assert f":{port:04X}" in left
        assert "/memfd:hvdlite-leaked" in left
        assert "left-thread" in left
        assert "sleep 60" in left
    finally:
        leaks.kill_children_since(before)
        released.set()
        thread.join()
        os.close(memory)
        listener.close()
    assert leaks.left_since(before) == []


def test_a_thread_that_had_no_name_yet_is_not_left_behind() -> None:
    context = zmq.Context()
    puller = context.socket(zmq.PULL)  # starts threads, which set their names when they run
    try:
        before = leaks.holdings()
        while not any("ZMQbg/Reaper" in text for _, text in leaks.holdings()):
            pass
        assert leaks.left_since(before, patience_s=0.0) == []
    finally:
        puller.close()
        context.term()

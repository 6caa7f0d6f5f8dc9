"""A signal handler that raises while a rank waits reaches the caller, and changes nothing else.

The handler runs before every bytecode in turn, in every function of hvdlite that the main thread enters on its way to a
result. Python itself runs handlers at some of these places only.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import pytest

import hvdlite as hvd
from hvdlite import native
from hvdlite.engine import executor
from hvdlite.engine.calls import Calls
from hvdlite.errors import NotInitialized, ShutDown
from hvdlite.groups import sets
from hvdlite.negotiation.entry import Entry
from hvdlite.session import group_of
from tests.harness import ProcessRanks, pause_at, process_ranks, reached
from tests.harness.alarms import raise_in_a_wait
from tests.harness.interrupts import At, Interrupt, interrupt_everywhere, raise_interrupt
from tests.harness.patience import LAST_RESORTS, NEVER_SILENT, until


def _array(value: float) -> Any:
    return np.full(8, value, np.float32)


# Each gives the sum of what the ranks give: 0, but on the rank that is interrupted.
_CALLS: dict[str, Callable[[float], float]] = {
    "allreduce": lambda value: float(hvd.allreduce(_array(value), name="blocking", op=hvd.Sum)[0]),
    "allreduce_": lambda value: float(hvd.allreduce_(_array(value), name="in place", op=hvd.Sum)[0]),
    "grouped_allreduce": lambda value: float(
        hvd.grouped_allreduce([_array(0), _array(value)], name="grouped", op=hvd.Sum)[1][0]
    ),
    "allreduce in parts": lambda value: float(
        hvd.allreduce(np.full(1 << 17, value, np.float32), name="large", op=hvd.Sum)[-1]
    ),
    "allgather": lambda value: float(hvd.allgather(_array(value), name="gathered").sum() / 8),
}


def _interrupted_everywhere(what: str) -> int:
    hvd.init()
    number = interrupt_everywhere(_CALLS[what])
    assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == hvd.size()
    hvd.shutdown()
    return number


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("what", _CALLS)
def test_a_blocking_call_is_interrupted_at_every_bytecode(what: str, size: int) -> None:
    numbers = [outcome.result() for outcome in process_ranks(size, _interrupted_everywhere, what)]
    assert numbers[0] > 200


def _synchronized_again() -> int:
    hvd.init()
    signal.signal(signal.SIGUSR1, raise_interrupt)
    number = is_over = 0
    while not is_over:
        handles = [
            hvd.allreduce_async(_array(1), name="one", op=hvd.Sum),
            hvd.grouped_allreduce_async([_array(1), _array(2)], name="many", op=hvd.Sum),
        ]
        at, results = At(number), []
        for handle in handles:
            try:
                with at:
                    result = hvd.synchronize(handle)
            except Interrupt:
                result = hvd.synchronize(handle)
            assert hvd.synchronize(handle) is None
            results.append(result)
        np.testing.assert_array_equal(results[0], hvd.size(), err_msg=at.where)
        np.testing.assert_array_equal(results[1], [_array(hvd.size()), _array(2 * hvd.size())], err_msg=at.where)
        is_over = hvd.allreduce(np.array([int(not at.where)]), op=hvd.Min, name="over")[0]
        number += 1
    hvd.shutdown()
    return number


@pytest.mark.parametrize("size", [1, 2])
def test_a_handle_is_synchronized_again_after_an_interrupt_at_every_bytecode(size: int) -> None:
    for outcome in process_ranks(size, _synchronized_again):
        assert outcome.result() > 200


def _storm(rounds: int) -> int:
    """All ranks are interrupted at any time, in steps of several batches."""
    hvd.init()
    signal.signal(signal.SIGALRM, raise_interrupt)
    chance, interrupts = random.Random(hvd.rank()), 0
    tensors = [np.ones(1 << size, np.float32) for size in (4, 10, 18, 18)]
    for turn in range(rounds):
        handles = [hvd.allreduce_async(tensor, name=f"{number}", op=hvd.Sum) for number, tensor in enumerate(tensors)]
        for handle in handles:
            result = None
            while result is None:
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.002))
                    result = hvd.synchronize(handle)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupt:
                    interrupts += 1
                    if handle.is_taken:  # just after the call
                        break
            assert result is None or result[0] == hvd.size(), turn
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    hvd.shutdown()
    return interrupts


@pytest.mark.parametrize("environ", [{}, {"HVDLITE_PLANE": "ring"}, {"HVDLITE_HOSTID": "of each"}])
def test_interrupts_at_any_time_on_all_ranks(environ: dict[str, str]) -> None:
    hosts = {rank: {"HVDLITE_HOSTID": f"host {rank}"} for rank in range(2)} if "HVDLITE_HOSTID" in environ else None
    outcomes = process_ranks(2, _storm, 100, environ=environ, environ_by_rank=hosts)
    assert sum(outcome.result() for outcome in outcomes) > 20


def _stops_in_a_batch() -> str:
    """Rank 1 stops itself when it would move the bytes of a batch, so that rank 0 waits for it in native code."""
    hvd.init()
    if hvd.rank() == 1:
        run = executor.run

        def stop_and_run(*arguments: Any) -> None:
            executor.run = run
            reached("stopping")
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread runs nothing more before it
            run(*arguments)

        executor.run = stop_and_run
    handle = hvd.allreduce_async(np.ones(1 << 16), name="x", op=hvd.Sum)
    if hvd.rank() == 0:
        raise_in_a_wait(Interrupt, 0.7)
        with pytest.raises(Interrupt):
            hvd.synchronize(handle)
        raise_in_a_wait(Interrupt, 0.2)
        with pytest.raises(Interrupt):
            hvd.allreduce(np.ones(3), name="y")
        reached("interrupted")  # rank 1 goes on only now
    assert hvd.synchronize(handle)[0] == 2.0
    for _ in range(1 + hvd.rank()):  # the call of rank 0 that was interrupted takes part as well
        assert hvd.allreduce(np.ones(3), name="y")[0] == 1.0
    hvd.shutdown()
    return "ok"


@pytest.mark.parametrize("plane", ["shm", "ring"])
def test_a_batch_that_waits_for_a_stopped_rank_is_interrupted_and_goes_on(plane: str) -> None:
    with ProcessRanks(2, _stops_in_a_batch, environ={"HVDLITE_PLANE": plane, **NEVER_SILENT}) as ranks:
        ranks.wait_for("interrupted", 0)
        os.kill(ranks.pid(1), signal.SIGCONT)
        assert [outcome.result() for outcome in ranks.join()] == ["ok", "ok"]


def _stops_while_tensors_move(turns: int) -> str:
    """Rank 1 stops itself at some time in each turn, mostly while a call moves the parts of a tensor."""
    hvd.init()
    ones, twos = (np.full(1 << 17, value, np.float32) for value in (1, 2))
    for turn in range(turns):
        if hvd.rank() == 1:
            stopping = threading.Timer(0.05 + turn / 1000, os.kill, (os.getpid(), signal.SIGSTOP))
            stopping.start()
            while (result := hvd.allreduce(ones, name="a", op=hvd.Sum))[0] != 3:
                np.testing.assert_array_equal(result, 2 * ones)
            stopping.join()
        else:
            raise_in_a_wait(Interrupt, 0.4)
            with contextlib.suppress(Interrupt):
                while True:
                    np.testing.assert_array_equal(hvd.allreduce(ones, name="a", op=hvd.Sum), 2 * ones)
            reached(f"interrupted {turn}")  # rank 1 goes on only now
            result = hvd.allreduce(twos, name="a", op=hvd.Sum)  # behind the call that was interrupted
        np.testing.assert_array_equal(result, 3 * ones)
    hvd.shutdown()
    return "ok"


def test_a_call_that_waits_for_parts_of_a_stopped_rank_is_interrupted_and_goes_on() -> None:
    turns = 8
    with ProcessRanks(2, _stops_while_tensors_move, turns, environ={"HVDLITE_SPIN": "50", **NEVER_SILENT}) as ranks:
        stopped = psutil.Process(ranks.pid(1))
        for turn in range(turns):
            ranks.wait_for(f"interrupted {turn}", 0)
            until(lambda: stopped.status() == psutil.STATUS_STOPPED)
            stopped.send_signal(signal.SIGCONT)
        assert [outcome.result() for outcome in ranks.join()] == ["ok", "ok"]


def _run_once_it_may(calls: Calls, entries: Sequence[Entry[Any]]) -> bool:
    """`Calls.run`, when this rank has ended what it did before, so that it does not submit in the usual way."""
    until(lambda: _run(calls, entries))
    return True


_run = Calls.run
_certainly_a_call = patch.object(Calls, "run", _run_once_it_may)


def _puts_no_parts_for_a_while(leaves: bool) -> str:
    """Rank 1's call is interrupted, and its executor, which then runs the tensor, does not begin when it should."""
    hvd.init()
    ones = np.ones(1 << 17, np.float32)
    for _ in range(3):  # then all ranks know it
        hvd.allreduce(ones, name="a", op=hvd.Sum)
    collect, outcome = executor.collect, "ok"
    if hvd.rank() == 1:

        def collect_later(*arguments: Any) -> None:
            executor.collect = collect
            pause_at("decided")
            collect(*arguments)

        executor.collect = collect_later
        raise_in_a_wait(Interrupt, 0.3)
        with pytest.raises(Interrupt), _certainly_a_call:
            hvd.allreduce(ones, name="a", op=hvd.Sum)
        reached("interrupted")
    else:
        pause_at("begin")
        if leaves:
            raise_in_a_wait(Interrupt, 0.3)
        try:
            with _certainly_a_call:
                assert hvd.allreduce(ones, name="a", op=hvd.Sum)[-1] == 2.0
        except Interrupt:
            outcome = "interrupted"
        except hvd.HorovodInternalError as error:
            outcome = str(error)
        reached("done")
    with contextlib.suppress(hvd.HorovodInternalError):  # the other rank has left
        if outcome == "ok":
            assert hvd.allreduce(ones, name="b", op=hvd.Sum)[-1] == 2.0
    hvd.shutdown()
    reached("left")
    return outcome


@contextlib.contextmanager
def _with_late_parts(leaves: bool, **environ: str) -> Iterator[ProcessRanks]:
    environ = {"HVDLITE_SPIN": "50", **NEVER_SILENT, **environ}
    with ProcessRanks(2, _puts_no_parts_for_a_while, leaves, environ=environ) as ranks:
        ranks.wait_for("interrupted", 1)
        ranks.wait_for("begin", 0)
        ranks.release(0)
        ranks.wait_for("decided", 1)
        yield ranks


def test_a_call_waits_for_parts_that_come_late() -> None:
    with _with_late_parts(False, **LAST_RESORTS) as ranks:
        ranks.release(1)
        assert [outcome.result() for outcome in ranks.join()] == ["ok", "ok"]


def test_a_call_whose_parts_do_not_come_fails() -> None:
    with _with_late_parts(False, HVDLITE_PROGRESS_TIMEOUT="1") as ranks:
        ranks.wait_for("done", 0)
        ranks.release(1)
        assert "no bytes moved within HVDLITE_PROGRESS_TIMEOUT" in ranks.join()[0].result()


def test_a_rank_shuts_down_in_time_while_parts_do_not_come() -> None:
    with _with_late_parts(True, **LAST_RESORTS, HVDLITE_SHUTDOWN_TIMEOUT="1") as ranks:
        ranks.wait_for("left", 0)
        assert ranks.time_of("left", 0) - ranks.time_of("done", 0) < 5.0


def _handles_a_signal_for_long() -> str:
    """In the call of rank 1, between two native calls, a handler runs until rank 0 has its result."""
    hvd.init()
    ones = np.ones(1 << 17, np.float32)
    for _ in range(3):
        hvd.allreduce(ones, name="a", op=hvd.Sum)
    turns = group_of(hvd.global_process_set)._turn_lock  # a turn that wants the page would end the call before
    holding: list[None] = []

    def run_without_turns(calls: Calls, entries: Sequence[Entry[Any]]) -> bool:
        with contextlib.ExitStack() as stack:
            turns.acquire()
            holding.append(None)
            stack.callback(lambda: holding and (holding.pop(), turns.release()))
            return _run(calls, entries)

    def handle(number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not _run.__code__:
            frame = frame.f_back
        if frame is None or frame.f_locals.get("outcome", native.CALL_REFUSED) <= native.CALL_LEFT:
            signal.setitimer(signal.ITIMER_REAL, 0.005)  # again: it is not between native calls
        else:
            holding.clear()
            turns.release()
            pause_at("in a handler")

    if hvd.rank() == 1:
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        run = patch.object(Calls, "run", lambda *arguments: until(lambda: run_without_turns(*arguments)) or True)
    else:
        pause_at("begin")
        run = _certainly_a_call
    with run:
        assert hvd.allreduce(ones, name="a", op=hvd.Sum)[-1] == 2.0
    reached("done")
    hvd.shutdown()
    return "ok"


def test_a_call_does_not_wait_for_signal_handlers_of_another_rank() -> None:
    with ProcessRanks(2, _handles_a_signal_for_long, environ={"HVDLITE_SPIN": "50", **NEVER_SILENT}) as ranks:
        ranks.wait_for("in a handler", 1)
        ranks.wait_for("begin", 0)
        ranks.release(0)
        ranks.wait_for("done", 0)
        ranks.release(1)
        assert [outcome.result() for outcome in ranks.join()] == ["ok", "ok"]


def _interrupted_join(is_over: bool) -> str:
    hvd.init()
    hvd.allreduce(np.ones(2))
    if hvd.rank() == 0:
        raise_in_a_wait(Interrupt, 0.2)
        with pytest.raises(Interrupt):
            hvd.join()
        with pytest.raises(hvd.HorovodInternalError, match="has joined"):
            hvd.allreduce(np.ones(2))
        reached("interrupted")
        if is_over:
            pause_at("again")
    else:
        pause_at("late")
        assert hvd.allreduce(np.ones(2), op=hvd.Sum)[0] == 1.0
    assert hvd.join() == 1
    if hvd.rank() == 1:
        reached("joined")
    assert hvd.allreduce(np.ones(2), op=hvd.Sum)[0] == 2.0  # without a name: counted alike
    hvd.shutdown()
    return "ok"


@pytest.mark.parametrize("is_over", [False, True])
def test_a_join_that_was_interrupted_is_called_again(is_over: bool) -> None:
    """Before or after all ranks have joined."""
    with ProcessRanks(2, _interrupted_join, is_over) as ranks:
        ranks.wait_for("interrupted", 0)
        ranks.release(1)
        if is_over:
            ranks.wait_for("joined", 1)
            ranks.release(0)
        assert [outcome.result() for outcome in ranks.join()] == ["ok", "ok"]


def _another_thread_joins() -> str:
    hvd.init()
    if hvd.rank() == 0:
        raise_in_a_wait(Interrupt, 0.2)
        with pytest.raises(Interrupt):
            hvd.join()
        refusals: list[str] = []
        other = threading.Thread(target=lambda: refusals.append(_refusal_of_join()))
        other.start()
        other.join()
        assert len(refusals) == 1
        assert "this rank has joined" in refusals[0]
        reached("refused")
    else:
        pause_at("late")
    assert hvd.join() == 1
    hvd.shutdown()
    return "ok"


def _refusal_of_join() -> str:
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.join()
    return str(caught.value)


def test_only_the_thread_whose_join_was_interrupted_calls_it_again() -> None:
    """Another one is refused while this rank has joined, and leaves it to the first."""
    with ProcessRanks(2, _another_thread_joins) as ranks:
        ranks.wait_for("refused", 0)
        ranks.release(1)
        assert [outcome.result() for outcome in ranks.join()] == ["ok", "ok"]


def _shut_down_in_a_handler(rounds: int) -> str:
    """The other rank goes on reducing, and hears of it."""
    for turn in range(rounds):
        hvd.init()
        tensor = np.ones(1 << 22, np.float32)
        if hvd.rank() == 0:
            signal.signal(signal.SIGALRM, lambda *_: hvd.shutdown())
            signal.setitimer(signal.ITIMER_REAL, 0.05 + turn / 1000)
        with contextlib.suppress(hvd.HorovodInternalError):  # because of the shutdown, on both
            while True:
                hvd.allreduce_(tensor, name="x", op=hvd.Min)
        assert hvd.is_initialized() == (_own_rank() == 1)
        hvd.shutdown()
    return "ok"


@pytest.mark.parametrize("plane", ["shm", "ring"])
def test_a_handler_shuts_down_while_batches_move(plane: str) -> None:
    """At once: it does not wait for its time-out, which is beyond the patience of the test."""
    environ = {"HVDLITE_PLANE": plane, "HVDLITE_SHUTDOWN_TIMEOUT": LAST_RESORTS["HVDLITE_PROGRESS_TIMEOUT"]}
    outcomes = process_ranks(2, _shut_down_in_a_handler, 8, environ=environ)
    assert [outcome.result() for outcome in outcomes] == ["ok", "ok"]


def _shut_down_everywhere(what: str) -> list[str]:
    """The errors of a call in which a handler shuts down, before each bytecode in turn."""
    signal.signal(signal.SIGUSR1, lambda *_: hvd.shutdown())
    errors = []
    for number in itertools.count(step=7):
        hvd.init()
        at = At(number)
        with contextlib.suppress(ShutDown, NotInitialized), at:
            try:
                _CALLS[what](0.0)
            except Exception as error:
                errors.append(type(error).__name__)
                raise
        hvd.shutdown()
        if not at.where:
            return errors
    raise AssertionError


@pytest.mark.parametrize("what", _CALLS)
def test_a_handler_shuts_down_at_any_bytecode_of_a_call(what: str) -> None:
    [outcome] = process_ranks(1, _shut_down_everywhere, what)
    assert {"ShutDown", "NotInitialized"} <= set(outcome.result()) <= {"ShutDown", "NotInitialized"}


def _add_interrupted(moment: str) -> str:
    """Rank 0 is interrupted before the others come, or while the members connect."""
    hvd.init()
    texts = []
    if hvd.rank() == 0:
        raise_in_a_wait(Interrupt, 0.2)
        with pytest.raises(Interrupt):
            hvd.add_process_set([0, 1])
        reached("interrupted")  # a rank that the set needs goes on only now
    else:
        if moment == "early":
            pause_at("late")
        elif hvd.rank() == 1:
            join = sets.Registry._join

            def wait_and_join(*arguments: Any) -> Any:
                pause_at("late")
                return join(*arguments)

            sets.Registry._join = wait_and_join
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.add_process_set([0, 1])
        texts.append(str(caught.value))
        if moment != "early" and hvd.rank() == 1:
            sets.Registry._join = join
    pair = hvd.add_process_set([0, 1])
    if pair.included():
        assert hvd.allreduce(np.ones(3), op=hvd.Sum, process_set=pair)[0] == 2
    assert hvd.allreduce(np.ones(3), op=hvd.Sum)[0] == 3
    hvd.shutdown()
    return "".join(texts)


@pytest.mark.parametrize("moment", ["early", "connecting"])
def test_a_process_set_whose_registration_is_interrupted_is_added_nowhere(moment: str) -> None:
    with ProcessRanks(3, _add_interrupted, moment) as ranks:
        ranks.wait_for("interrupted", 0)
        ranks.release(*([1, 2] if moment == "early" else [1]))
        _, *texts = [outcome.result() for outcome in ranks.join()]
    assert len(set(texts)) == 1
    assert "rank 0: adding a process set was interrupted by Interrupt" in texts[0]


def _interrupted_init() -> str:
    """Rank 0 is interrupted while it waits for a rank that does not come."""
    if _own_rank() == 0:
        descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        signal.signal(signal.SIGALRM, raise_interrupt)
        with pytest.raises(Interrupt):  # noqa: PT012 - or init waits longer than the test
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            hvd.init()
        assert not hvd.is_initialized()
        assert threading.active_count() == threads
        assert len(os.listdir("/proc/self/fd")) == descriptors
    return "ok"


def _interrupted_and_called_again() -> str:
    """Rank 0 is interrupted in each of three calls before the other rank comes."""
    if _own_rank() == 0:
        signal.signal(signal.SIGALRM, raise_interrupt)
        for _ in range(3):
            with pytest.raises(Interrupt):  # noqa: PT012
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                hvd.init()
        reached("interrupted")
    else:
        pause_at("late")
    hvd.init()
    assert hvd.allreduce(np.ones(3), op=hvd.Sum)[0] == 2
    hvd.shutdown()
    return "ok"


@pytest.mark.parametrize("environ", [{}, {"HVDLITE_RENDEZVOUS": "", "HVDLITE_SECRET": ""}], ids=["hvdrun", "engine"])
def test_init_that_was_interrupted_is_called_again(environ: dict[str, str]) -> None:
    with ProcessRanks(2, _interrupted_and_called_again, environ=environ) as ranks:
        ranks.wait_for("interrupted", 0)
        ranks.release(1)
        assert [outcome.result() for outcome in ranks.join()] == ["ok", "ok"]


def _own_rank() -> int:
    return int(os.environ["HVDLITE_RANK"])


def test_init_that_is_interrupted_leaves_no_session() -> None:
    assert [outcome.result() for outcome in process_ranks(2, _interrupted_init)] == ["ok", "ok"]

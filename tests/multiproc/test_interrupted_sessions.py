"""Signal handlers that raise anywhere in ``init`` and in ``shutdown`` leave nothing behind.

An ``init`` that was interrupted leaves no session, and a ``shutdown`` is finished by the next one, or by ``init``.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite import session
from hvdlite.groups.connecting import Connecting
from hvdlite.rendezvous.client import Exchanges
from hvdlite.rendezvous.world import meet_world
from hvdlite.scope import Scope
from tests.harness import process_ranks
from tests.harness.alarms import raise_in_a_wait, signal_to_another_thread
from tests.harness.interrupts import At, Interrupt, is_ours, raise_interrupt
from tests.harness.leaks import holdings, left_since
from tests.harness.patience import PATIENCE_S

_EVERY = 23  # bytecode, in all runs; all of them are for `make test-faults`


def _use() -> None:
    assert hvd.allreduce(np.ones(3), op=hvd.Sum)[0] == hvd.size()


def _warm_up() -> Any:
    """Returns the resources of the process once everything that is made only once exists."""
    signal.signal(signal.SIGUSR1, raise_interrupt)
    for _ in range(2):
        hvd.init()
        _use()
        hvd.shutdown()
    return holdings()


def _init(step: int) -> int:
    """Interrupts ``init`` before each ``step``-th bytecode. Returns the number of bytecodes."""
    before = _warm_up()
    number = 0
    while True:
        at = At(number)
        with contextlib.suppress(Interrupt), at:
            hvd.init()
        if not at.where:
            break
        assert not hvd.is_initialized(), at.where
        gc.collect()
        assert not left_since(before), at.where
        hvd.init()
        _use()
        hvd.shutdown()
        number += step
    _use()
    hvd.shutdown()
    return number


def _init_with_errors(error: type[Exception], step: int) -> int:
    """``init`` registers a process set that there is already, and a handler raises before it says so, or after."""
    before = _warm_up()

    def fail(*_: Any) -> None:
        raise error("out of a handler")

    signal.signal(signal.SIGUSR1, fail)
    number = 0
    while True:
        at, was_refused = At(number), False
        try:
            with at:
                hvd.init(process_sets=[[0]] if number % 2 else [])
        except error as raised:
            was_refused = "there is a process set of ranks [0] already" in str(raised)
        except ValueError:
            was_refused = True
        assert hvd.is_initialized() == (was_refused or not at.where), at.where
        if hvd.is_initialized():
            _use()
            hvd.shutdown()
        gc.collect()
        assert not left_since(before), at.where
        if not at.where:
            return number
        number += step


def _shutdown(step: int, again: Callable[[], None]) -> int:
    before = _warm_up()
    number = 0
    while True:
        hvd.init()
        _use()
        at = At(number)
        with contextlib.suppress(Interrupt), at:
            hvd.shutdown()
        if not at.where:
            break
        again()
        assert not hvd.is_initialized(), at.where
        gc.collect()
        assert not left_since(before), at.where
        number += step
    return number


def _init_and_shutdown() -> None:
    hvd.init()
    _use()
    hvd.shutdown()


class _InTheThread:
    """A context in which the main thread is interrupted when the thread of ``init`` comes to its line ``number``."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._was_raised = threading.Event()
        self.where = ""

    def __enter__(self) -> None:
        signal.signal(signal.SIGUSR1, self._raise)
        threading.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        threading.settrace(None)  # type: ignore[arg-type]

    def _raise(self, *_: Any) -> None:
        self._was_raised.set()
        raise Interrupt

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if threading.current_thread().name != "hvdlite-apart" or not is_ours(frame):
            return None
        if event == "line":
            self._left -= 1
            if self._left == -1:
                self.where = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                self._was_raised.wait()
        return self._trace


def _meet(is_last: bool) -> bool:
    """Calls ``init`` until a session has worked. True if all ranks say that it is the last time."""
    while True:
        try:
            hvd.init()
            are_last = bool(hvd.allreduce(np.array([is_last]), op=hvd.Min)[0])
        except hvd.HorovodInternalError:
            hvd.shutdown()
        else:
            hvd.shutdown()
            return are_last


def _while_it_connects(interrupted: int, step: int) -> list[str]:
    before = _warm_up()
    number, places, is_last = step // 2, [], False
    while not is_last:
        at = _InTheThread(number)
        if _own_rank() == interrupted:
            with contextlib.suppress(hvd.HorovodInternalError, Interrupt), at:
                hvd.init()
            assert hvd.is_initialized() != bool(at.where), at.where
            if at.where:
                gc.collect()
                assert (left := left_since(before)) == [], f"{at.where}: {left}"
                places.append(at.where)
        is_last = _meet(_own_rank() != interrupted or not at.where)
        number += step
    gc.collect()
    assert (left := left_since(before)) == [], left
    return places


def _own_rank() -> int:
    return int(os.environ["HVDLITE_RANK"])


_FOR_EVER = {"HVDLITE_START_TIMEOUT": str(4 * PATIENCE_S)}
_FROM_RANK_0 = {"HVDLITE_RENDEZVOUS": "", "HVDLITE_SECRET": ""}


@pytest.mark.parametrize(
    ("interrupted", "environ"),
    [
        pytest.param(0, _FOR_EVER, id="rank 0 under hvdrun"),
        pytest.param(1, _FOR_EVER, id="rank 1 under hvdrun"),
        # Ranks that differ in whether they have the key miss each other once.
        *(
            pytest.param(
                rank,
                {"HVDLITE_START_TIMEOUT": "3"} | _FROM_RANK_0,
                id=f"rank {rank}, where rank 0 serves",
                marks=pytest.mark.faults,
            )
            for rank in range(2)
        ),
    ],
)
@pytest.mark.parametrize("step", [101, pytest.param(13, marks=pytest.mark.faults)])
def test_init_that_is_interrupted_while_ranks_connect_is_called_again(
    step: int, interrupted: int, environ: dict[str, str]
) -> None:
    outcomes = process_ranks(2, _while_it_connects, interrupted, step, environ=environ)
    assert len(outcomes[interrupted].result()) > 3


@contextlib.contextmanager
def _interrupted_at(owner: Any, function: str, before: Callable[..., object] = lambda *_: None) -> Iterator[None]:
    """A context in which the main thread is interrupted while another is in ``function`` of ``owner``.

    That is, in its place: after ``before`` it waits for the interruption.
    """
    signal.signal(signal.SIGUSR1, raise_interrupt)

    def interrupted(*arguments: Any) -> Any:
        before(*arguments)
        (scope,) = (getattr(each, "_scope", each) for each in arguments if isinstance(each, Scope | Exchanges))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        while True:
            scope.check()

    with patch.object(owner, function, interrupted), pytest.raises(Interrupt):
        yield


def _leaves_while_others_connect(leaving: int) -> str:
    """Rank ``leaving`` is interrupted between the exchange of addresses and the first connection to it."""
    told = ""
    if _own_rank() == leaving:
        with _interrupted_at(Connecting, "connect"):
            hvd.init()
    else:
        with pytest.raises(hvd.HorovodInternalError) as raised:
            hvd.init()
        told = str(raised.value)
    assert not hvd.is_initialized()
    hvd.init()
    _use()
    hvd.shutdown()
    return told


@pytest.mark.parametrize("hosts", ["aaa", "aab", "abc"])
@pytest.mark.parametrize("leaving", [0, 1, 2])
def test_all_hear_at_once_of_a_rank_that_leaves_while_ranks_connect(leaving: int, hosts: str) -> None:
    outcomes = process_ranks(
        3,
        _leaves_while_others_connect,
        leaving,
        environ=_FOR_EVER,
        environ_by_rank={rank: {"HVDLITE_HOSTID": host} for rank, host in enumerate(hosts)},
    )
    told = [outcome.result() for outcome in outcomes]
    assert told.pop(leaving) == ""
    for each in told:
        assert f"rank {leaving} has left: init() was interrupted by Interrupt; call it again on all ranks" in each


def _does_not_hear_that_all_have_come(interrupted: int) -> None:
    """The other ranks count this init, and rank ``interrupted`` does not."""
    if _own_rank() == interrupted:
        with _interrupted_at(session, "meet_world", before=meet_world):
            hvd.init()
    assert _meet(is_last=True)


@pytest.mark.parametrize("interrupted", [0, 1])
def test_ranks_that_differ_in_how_often_they_met_meet_again(interrupted: int) -> None:
    environ = _FOR_EVER | _FROM_RANK_0
    for outcome in process_ranks(2, _does_not_hear_that_all_have_come, interrupted, environ=environ):
        outcome.result()


def _waits_in_vain(error: type[BaseException]) -> None:
    if _own_rank() == 0:
        raise_in_a_wait(error, 0.1)
        with pytest.raises(error) as caught:
            hvd.init()
        assert type(caught.value) is error
        assert not hvd.is_initialized()


@pytest.mark.parametrize("error", [ValueError, TimeoutError, ConnectionError, KeyboardInterrupt])
def test_what_a_handler_raises_in_init_passes_as_it_is(error: type[BaseException]) -> None:
    for outcome in process_ranks(2, _waits_in_vain, error):
        outcome.result()


@pytest.mark.parametrize("step", [_EVERY, pytest.param(1, marks=pytest.mark.faults)])
def test_init_that_is_interrupted_at_any_bytecode_leaves_nothing(step: int) -> None:
    assert process_ranks(1, _init, step)[0].result() > 300


@pytest.mark.parametrize("error", [ValueError, hvd.HorovodInternalError])
@pytest.mark.parametrize("step", [_EVERY, pytest.param(1, marks=pytest.mark.faults)])
def test_init_in_which_a_handler_raises_any_error_leaves_no_session(error: type[Exception], step: int) -> None:
    assert process_ranks(1, _init_with_errors, error, step)[0].result() > 300


@pytest.mark.parametrize("again", [hvd.shutdown, _init_and_shutdown], ids=["shutdown", "init"])
@pytest.mark.parametrize("step", [_EVERY // 3, pytest.param(1, marks=pytest.mark.faults)])
def test_shutdown_that_is_interrupted_at_any_bytecode_is_finished_by(step: int, again: Callable[[], None]) -> None:
    assert process_ranks(1, _shutdown, step, again)[0].result() > 100


def _waits_for_another_thread(call: str) -> None:
    """The main thread calls ``init`` or ``shutdown`` while another thread is in ``init``, until that may go on."""
    is_in, may_go_on = threading.Event(), threading.Event()

    def meet(*arguments: Any) -> Any:
        is_in.set()
        may_go_on.wait()
        return meet_world(*arguments)

    signal.signal(signal.SIGUSR1, raise_interrupt)
    with patch.object(session, "meet_world", meet):
        other = threading.Thread(target=hvd.init)
        other.start()
        is_in.wait()
        sender = signal_to_another_thread(signal.SIGUSR1)
        with pytest.raises(Interrupt):
            getattr(hvd, call)()
        may_go_on.set()
        other.join()
    sender.join()
    assert hvd.is_initialized()
    _use()
    hvd.shutdown()


@pytest.mark.parametrize("call", ["init", "shutdown"])
def test_a_call_that_waits_for_another_thread_runs_handlers(call: str) -> None:
    for outcome in process_ranks(1, _waits_for_another_thread, call):
        outcome.result()

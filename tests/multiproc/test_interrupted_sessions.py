"""What a signal handler raises in ``init`` and in ``shutdown``, wherever these are, leaves nothing behind.

An ``init`` that was interrupted leaves no session, and a ``shutdown`` is finished by the next one, or by ``init``.
"""

from __future__ import annotations

import contextlib
import gc
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import process_ranks
from tests.harness.interrupts import At, Interrupt, raise_interrupt
from tests.harness.leaks import holdings, left_since

_EVERY = 23  # bytecode, in all runs; all of them are for `make test-faults`


def _use() -> None:
    assert hvd.allreduce(np.ones(3), op=hvd.Sum)[0] == hvd.size()


def _warm_up() -> Any:
    """What the process holds once all that is made only once is there."""
    signal.signal(signal.SIGUSR1, raise_interrupt)
    for _ in range(2):
        hvd.init()
        _use()
        hvd.shutdown()
    return holdings()


def _init(step: int) -> int:
    """How many bytecodes there were. ``init`` is interrupted before each ``step``-th of them."""
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


@pytest.mark.parametrize("step", [_EVERY, pytest.param(1, marks=pytest.mark.faults)])
def test_init_that_is_interrupted_at_any_bytecode_leaves_nothing(step: int) -> None:
    assert process_ranks(1, _init, step)[0].result() > 300


@pytest.mark.parametrize("again", [hvd.shutdown, _init_and_shutdown], ids=["shutdown", "init"])
@pytest.mark.parametrize("step", [_EVERY // 3, pytest.param(1, marks=pytest.mark.faults)])
def test_shutdown_that_is_interrupted_at_any_bytecode_is_finished_by(step: int, again: Callable[[], None]) -> None:
    assert process_ranks(1, _shutdown, step, again)[0].result() > 100

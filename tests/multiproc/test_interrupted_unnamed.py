"""A call without a name is counted if it was submitted, wherever a signal handler interrupts it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import process_ranks
from tests.harness.patience import NO_TIMER
from tests.harness.uncounted import Call, calls_of, interrupt_everywhere


def _rows(value: float) -> Any:
    return np.full((2 * hvd.size(), 2), value, np.float32)


def _barrier(_: float) -> None:
    hvd.barrier()


_CALLS: dict[str, Call] = {**calls_of(hvd, _rows), "barrier": _barrier}


def _work(step: int) -> dict[str, int]:
    hvd.init()
    places = interrupt_everywhere(_CALLS, step)
    hvd.shutdown()
    return places


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.faults)])
@pytest.mark.parametrize("size", [2, 3])
def test_calls_without_names_are_interrupted_at_every_bytecode(size: int, step: int) -> None:
    for what, places in process_ranks(size, _work, step, environ=NO_TIMER)[0].result().items():
        assert places > 200, what

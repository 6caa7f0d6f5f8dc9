"""A block of timed iterations. Like `pattern`, it imports nothing from hvdlite."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def nanoseconds(
    run: Callable[[], Any], length: int, warmup: int, clock: Callable[[], int] = time.perf_counter_ns
) -> list[int]:
    """Times ``length`` calls of ``run`` back to back, after ``warmup`` untimed ones."""
    for _ in range(warmup):
        run()
    times = [0] * length
    for iteration in range(length):
        begin = clock()
        run()
        times[iteration] = clock() - begin
    return times

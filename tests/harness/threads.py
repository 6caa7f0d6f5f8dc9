"""Ranks as threads of this process: the cheapest way to run a collective among several."""

from __future__ import annotations

import faulthandler
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tests.harness.patience import PATIENCE_S

T = TypeVar("T")


def thread_ranks(count: int, work: Callable[[int], T], deadline_s: float = PATIENCE_S) -> list[T]:
    """Runs ``work(rank)`` for ``count`` ranks at once and returns their values in rank order.

    Re-raises the first error. Raises TimeoutError with every thread's stack if a rank has not ended after
    ``deadline_s`` seconds, and leaves its thread behind, because a thread cannot be killed.
    """
    values: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            values[rank] = work(rank)
        except BaseException as error:
            error.add_note(f"raised on rank {rank}")
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank-{rank}", daemon=True) for rank in range(count)]
    deadline = time.monotonic() + deadline_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = [thread.name for thread in threads if thread.is_alive()]
    if late:
        first = f"; first error: {errors[0]!r}" if errors else ""
        raise TimeoutError(f"{', '.join(late)} still running after {deadline_s:g} s{first}\n{_stacks()}")
    if errors:
        raise errors[0]
    return [values[rank] for rank in range(count)]


def _stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()

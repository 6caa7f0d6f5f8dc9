"""Programs whose ranks do not fit together: ``unruly.py NAME`` runs one of the functions below on each rank.

The last rank is the one that is wrong. Each rank ends with one line of JSON: what the function returned.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import time
from collections.abc import Callable

import numpy as np

import hvdlite as hvd

HANG_S = 5  # longer than the timeout of a peer


def _sum(name: str, *shape: int) -> float:
    return float(hvd.allreduce(np.ones(shape or 3), name=name, op=hvd.Sum).flat[0])


def _is_last() -> bool:
    return hvd.rank() == hvd.size() - 1


def _refused(call: Callable[[], object], kind: type[Exception]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    return ""


def sleeps() -> float:
    """The last rank does something else for long."""
    if _is_last():
        time.sleep(HANG_S)
    return _sum("gradient")


def holds_the_gil() -> float:
    """No Python thread of the last rank runs for long."""
    if _is_last():
        ctypes.PyDLL(None).sleep(HANG_S)
    return _sum("gradient")


def forgets_a_tensor() -> str:
    """The last rank leaves out a tensor; the text of Stalled."""
    names = [f"layer {number}" for number in range(5)]
    if _is_last():
        names.remove("layer 2")
    handles = [hvd.allreduce_async(np.ones(3), name=name) for name in names]
    return _refused(lambda: [hvd.synchronize(handle) for handle in handles] and _sum("next"), hvd.Stalled)


def shuffles() -> list[float]:
    """Every rank has an order of its own, twice; the sums."""
    names = [f"layer {number}" for number in range(20)]
    sums = []
    for _ in range(2):
        order = random.Random(hvd.rank()).sample(names, len(names))
        handles = [hvd.allreduce_async(np.ones(3), name=name, op=hvd.Sum) for name in order]
        sums += [float(hvd.synchronize(handle)[0]) for handle in handles]
    return sorted(set(sums))


def disagrees() -> list[object]:
    """The last rank has another shape, under a new name and under a known one; the refusals, and sums of that name."""
    seen: list[object] = []
    for _ in range(2):
        began = time.monotonic()
        seen.append(_refused(lambda: _sum("gradient", 4 if _is_last() else 3), hvd.Mismatch))
        seen += [time.monotonic() - began, _sum("gradient")]
    return seen


PROGRAMS: dict[str, Callable[[], object]] = {
    program.__name__: program for program in (sleeps, holds_the_gil, forgets_a_tensor, shuffles, disagrees)
}

if __name__ == "__main__":
    hvd.init()
    _sum("first")
    print(json.dumps(PROGRAMS[sys.argv[1]]()), flush=True)
    hvd.shutdown()

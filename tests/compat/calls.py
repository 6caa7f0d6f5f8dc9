"""Functions that tests have `hvdlite.run` call, and scripts that call it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

import hvdlite as hvd
from hvdlite.running import run


def add_up(base: float, factor: float = 1.0) -> tuple[int, int, float]:
    """Rank, size, and the sum over all ranks of (base + rank) times factor."""
    hvd.init()
    total = hvd.allreduce(np.array([base + hvd.rank()]), op=hvd.Sum, name="total", postscale_factor=factor)
    return hvd.rank(), hvd.size(), float(total[0])


def where() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(("HVDLITE_", "TEST_"))}


def large() -> np.ndarray[Any, Any]:
    return np.full(1_000_000, float(os.environ["HVDLITE_RANK"]))


def endless_numbers() -> Iterator[int]:
    return iter(int, 1) if os.environ["HVDLITE_RANK"] == "0" else (number for number in ())


def nest() -> list[tuple[int, int, float]]:
    return run(add_up, (1.0,))


def on_rank_one(what: str) -> None:
    """Rank 1 ends as told; the others would wait for ever."""
    if os.environ["HVDLITE_RANK"] != "1":
        threading.Event().wait()
    if what == "raise":
        raise KeyError("no such thing")
    if what == "kill":
        os.kill(os.getpid(), 9)
    sys.exit(int(what))


def leave() -> None:
    sys.exit(0)


def wait_for_ever() -> None:
    """Prints its process id and the key of the link to the caller, then waits."""
    print(f"<{os.getpid()} {os.environ['HVDLITE_RUN_SECRET']}>")
    threading.Event().wait()

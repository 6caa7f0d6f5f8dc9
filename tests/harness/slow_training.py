"""A rank of a job like a training, in which one becomes slow: ``python -m tests.harness.slow_training FILE FAULT``.

``FILE`` is shared with the test (`Control`). All ranks make equal steps of about 40 ms: data, forward, 20 gradients and
their all-reduces. From the time at which the test says so, ``FAULT`` happens to the rank that it has chosen; what must
be done from outside has another name, and nothing happens here.
"""

from __future__ import annotations

import gc
import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

import hvdlite as hvd
from hvdlite.observe.loading import loading

MOST_RANKS: Final = 16
GRADIENTS: Final = 20
_PAGE: Final = mmap.PAGESIZE
_FILE_BYTES: Final = 48 << 20


class Control:
    """Numbers that the test and the ranks share."""

    NBYTES: Final = 8 * (3 + MOST_RANKS)

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), self.NBYTES)
        self._numbers = memoryview(self._memory).cast("q")

    def close(self) -> None:
        self._numbers.release()
        self._memory.close()

    @property
    def slow(self) -> int:
        """The rank that is to be slow; below 0 for none."""
        return self._numbers[0] - 1

    @slow.setter
    def slow(self, rank: int) -> None:
        self._numbers[0] = rank + 1

    @property
    def is_over(self) -> bool:
        return bool(self._numbers[1])

    def stop(self) -> None:
        """Has the ranks stop after their present step."""
        self._numbers[1] = 1

    @property
    def steps(self) -> int:
        """Those that rank 0 has made."""
        return self._numbers[2]

    @steps.setter
    def steps(self, number: int) -> None:
        self._numbers[2] = number

    def pid(self, rank: int) -> int:
        return self._numbers[3 + rank]

    def note_pid(self, rank: int) -> None:
        self._numbers[3 + rank] = os.getpid()


class Rank:
    """What a rank does in a step, and what more if it is slow."""

    def __init__(self, fault: str) -> None:
        self._weights = np.random.default_rng(0).random((150, 200))
        self.gradients = [np.ones(2000, np.float32) for _ in range(GRADIENTS)]
        self._kept = _circles(400_000) if fault == "collecting" else []
        self._touched = mmap.mmap(-1, 96 << 20) if fault == "faults" else None
        self._file = _file() if fault == "memory" else None
        self._data: mmap.mmap | None = None
        self.load = loading.timed(self._load)
        self._once: Callable[[], None] | None = {"gil": self._compute_beside, "memory": self._forget}.get(fault)
        self._each: Callable[[], None] | None = {
            "collecting": lambda: gc.collect(),
            "faults": self._fault,
            "loading": lambda: None,
            "late": lambda: time.sleep(0.06),
        }.get(fault)
        self._fault_name = fault

    def _load(self, is_slow: bool) -> None:
        time.sleep(0.06 if is_slow and self._fault_name == "loading" else 0.002)
        if self._file is not None:
            if self._data is None:
                self._data = mmap.mmap(self._file, _FILE_BYTES, prot=mmap.PROT_READ)
            sum(self._data[at] for at in range(0, _FILE_BYTES, 8 * _PAGE))

    def forward(self, is_slow: bool) -> None:
        if is_slow and self._once is not None:
            self._once()
            self._once = None
        if is_slow and self._each is not None:
            self._each()
        self._compute(20)
        time.sleep(0.01)

    def backward(self, number: int) -> None:
        """Computes one gradient."""
        self._compute(2)
        if number % 4 == 0:
            time.sleep(0.002)

    def _compute(self, times: int) -> None:
        for _ in range(times):
            self._weights * self._weights + self._weights  # of a size for which numpy lets go of the GIL

    def _compute_beside(self) -> None:
        def compute() -> None:
            number = 0
            while True:
                number += 1

        threading.Thread(target=compute, name="busy", daemon=True).start()

    def _fault(self) -> None:
        assert self._touched is not None
        self._touched.madvise(mmap.MADV_NOHUGEPAGE)
        self._touched.madvise(mmap.MADV_DONTNEED)
        for at in range(0, len(self._touched), _PAGE):
            self._touched[at] = 1

    def _forget(self) -> None:
        """Lets go of what has been read, so that it is counted again, for the cgroup that this process is in now."""
        assert self._file is not None
        if self._data is not None:
            self._data.close()
            self._data = None
        os.posix_fadvise(self._file, 0, _FILE_BYTES, os.POSIX_FADV_DONTNEED)


def _circles(count: int) -> list[Any]:
    """Objects that the collector looks at each time, for it alone can tell when nobody else knows them."""
    circles: list[Any] = []
    for _ in range(count):
        one: list[Any] = []
        one.append(one)
        circles.append(one)
    return circles


def _file() -> int:
    descriptor, path = tempfile.mkstemp()
    os.unlink(path)
    os.write(descriptor, os.urandom(1 << 20) * (_FILE_BYTES >> 20))
    os.fsync(descriptor)
    return descriptor


def main(path: str, fault: str) -> None:
    gc.collect()
    hvd.init()
    control, rank = Control(Path(path)), Rank(fault)
    control.note_pid(hvd.rank())
    is_over = 0.0
    for step in range(1, 1 << 30):
        is_slow = control.slow == hvd.rank()
        rank.load(is_slow)
        rank.forward(is_slow)
        handles = []
        for number, gradient in enumerate(rank.gradients):
            rank.backward(number)
            handles.append(hvd.allreduce_async(gradient, name=f"gradient {number}"))
        for handle in handles:
            hvd.synchronize(handle)
        if hvd.rank() == 0:
            control.steps = step
        is_over = float(hvd.allreduce(np.array([float(control.is_over)]), name="over")[0])
        if is_over:
            break
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])

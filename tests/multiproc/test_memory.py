"""The memory that hvdlite takes of a rank: little, and not more for larger tensors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.harness import process_ranks

MIB = 1 << 20
BARE = "print(next(line for line in open('/proc/self/status') if line.startswith('VmRSS')).split()[1])"


def _status_bytes(name: str) -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


def _grow() -> tuple[int, list[int]]:
    import numpy as np

    import hvdlite as hvd

    def peak(count: int, size: int) -> int:
        """Measures the peak growth of memory while ``count`` tensors of ``size`` bytes are reduced as one group."""
        tensors = [np.ones(size, np.uint8) for _ in range(count)]
        before = _status_bytes("VmRSS")
        with open("/proc/self/clear_refs", "w") as peaks:
            peaks.write("5")  # the peak is what is resident now
        hvd.grouped_allreduce_(tensors, op=hvd.Sum)
        return _status_bytes("VmHWM") - before

    hvd.init()
    started = _status_bytes("VmRSS")
    grown = [peak(count, size) for count, size in ((1, 1), (1, MIB), (1, 256 * MIB), (64, MIB))]
    hvd.shutdown()
    return started, grown


@pytest.mark.parametrize("plane", ["shm", "ring"])
def test_a_rank_takes_at_most_40_mib_and_no_more_for_large_tensors_or_batches(plane: str) -> None:
    bare = int(subprocess.run([sys.executable, "-c", BARE], capture_output=True, check=True).stdout) * 1024
    for outcome in process_ranks(2, _grow, environ={"HVDLITE_PLANE": plane}):
        started, grown = outcome.result()
        assert started - bare < 40 * MIB
        assert max(grown) < 24 * MIB  # slots or frames, whatever is reduced; a fused batch has no buffer of its own

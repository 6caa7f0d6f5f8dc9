"""What hvdlite takes of a rank's memory: little, and not more for larger tensors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.harness import process_ranks

MIB = 1 << 20
BARE = "print(next(line for line in open('/proc/self/status') if line.startswith('VmRSS')).split()[1])"


def _resident_bytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def _grow() -> tuple[int, int]:
    import numpy as np

    import hvdlite as hvd

    hvd.init()
    before = _resident_bytes()
    for size in (1, MIB, 256 * MIB):
        tensor = np.ones(size, np.uint8)
        hvd.allreduce_(tensor, op=hvd.Sum)
    del tensor
    hvd.barrier()
    after = _resident_bytes()
    hvd.shutdown()
    return before, after


@pytest.mark.parametrize("plane", ["shm", "ring"])
def test_a_rank_takes_at_most_40_mib_and_no_more_for_large_tensors(plane: str) -> None:
    bare = int(subprocess.run([sys.executable, "-c", BARE], capture_output=True, check=True).stdout) * 1024
    for outcome in process_ranks(2, _grow, environ={"HVDLITE_PLANE": plane}):
        before, after = outcome.result()
        assert before - bare < 40 * MIB
        assert after - before < 24 * MIB  # slots or frames, whatever the size of the tensor

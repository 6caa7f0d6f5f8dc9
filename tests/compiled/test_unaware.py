"""Compiled functions that use collectives of arrays, in a program that has torch and not hvdlite's front end for it."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import sys
import torch
import hvdlite as hvd

hvd.init()
assert "hvdlite.torch" not in sys.modules

@torch.compile(backend="eager")
def step(x):
    mean = torch.as_tensor(hvd.allreduce((2 * x).numpy())) + 1
    return mean, hvd.synchronize(hvd.allgather_async(x.numpy()))

mean, rows = step(torch.ones(3))
assert mean.tolist() == [3, 3, 3]
assert rows.tolist() == [1, 1, 1]
"""


def test_collectives_of_arrays_are_not_traced() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

"""The memory that the C library's allocator keeps of what a process frees."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from tests.harness.patience import PATIENCE_S

_LENGTH, _COUNT, _ROUNDS = 16 << 20, 6, 3
_PAGES = _ROUNDS * _COUNT * _LENGTH // os.sysconf("SC_PAGE_SIZE")

# Rounds like steps of a training. The first ones let the thresholds of the allocator grow. What keeps memory is the
# optimizer, or a ring that is opened, with as much.
_SCRIPT = f"""
import ctypes, os, resource, sys
import hvdlite as hvd
from hvdlite.ops.memory import keep_freed
from hvdlite.planes.ring.plane import RingPlane
from hvdlite.settings import Settings
from tests.harness.members import member

libc = ctypes.CDLL(None)
libc.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: a fault is one of small pages
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = (ctypes.c_size_t,)
libc.free.argtypes = (ctypes.c_void_p,)

def turn():
    blocks = [libc.malloc({_LENGTH}) for _ in range({_COUNT})]
    for block in blocks:
        ctypes.memset(block, 1, {_LENGTH})
    for block in blocks:
        libc.free(block)

def keep(nbytes):
    if sys.argv[1] == "optimizer":
        keep_freed(nbytes)
    elif nbytes:
        frame = {{"HVDLITE_RING_CHUNK": str(max(4096, nbytes // 4)), "HVDLITE_RING_WINDOW": "1"}}
        options = Settings.read(os.environ | frame)
        RingPlane(member(0, "aa"), options).close()

hvd.init()
turn()
for kept in (0, {_COUNT * _LENGTH}, 1):
    keep(kept)
    turn()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({_ROUNDS}):
        turn()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.parametrize(
    ("keeper", "environment", "keeps"),
    [
        ("optimizer", {}, True),
        ("optimizer", {"HVDLITE_KEEP_FREED": "0"}, False),
        ("optimizer", {"MALLOC_TRIM_THRESHOLD_": "1000000", "MALLOC_MMAP_THRESHOLD_": "33554432"}, False),
        ("optimizer", {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1000000"}, False),
        ("ring", {}, True),
        ("ring", {"HVDLITE_KEEP_FREED": "0"}, False),
    ],
    ids=["keeps", "hvdlite's variable", "the user's variable", "the user's tunable", "ring keeps", "ring's variable"],
)
def test_what_is_freed_stays_unless_the_user_says_otherwise(
    keeper: str, environment: dict[str, str], keeps: bool
) -> None:
    command, variables = [sys.executable, "-c", _SCRIPT, keeper], os.environ | environment
    printed = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout
    before, then, after_less_was_said = map(int, printed.split())
    assert before > _PAGES // 2
    for faults in (then, after_less_was_said):
        assert faults < _PAGES // 20 if keeps else faults > _PAGES // 2

"""Tensors of 2 GiB, and batches of more than 4 GiB: nothing on the way counts in 32 bits."""

from __future__ import annotations

import numpy as np
import psutil
import pytest

import hvdlite as hvd
from tests.harness import process_ranks

pytestmark = pytest.mark.faults
GIB = 1 << 30
BLOCK = 61 << 20  # no power of two, so that what wraps around meets another value
HOSTS = {"shm": "aa", "ring": "aa", "hierarchical": "abb"}


def reduce_in_place(sizes: list[int]) -> list[int]:
    """The first wrong byte of each tensor after an all-reduce of all of them as one group; -1 if there is none."""
    hvd.init()
    tensors = [np.empty(size, np.uint8) for size in sizes]
    for number, tensor in enumerate(tensors):
        for block, begin in enumerate(range(0, tensor.size, BLOCK)):
            tensor[begin : begin + BLOCK] = (block + number + hvd.rank()) % 80
    hvd.grouped_allreduce_(tensors, op=hvd.Sum, name="large")
    wrong = [_first_wrong(number, tensor) for number, tensor in enumerate(tensors)]
    hvd.shutdown()
    return wrong


def _first_wrong(number: int, tensor: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> int:
    for block, begin in enumerate(range(0, tensor.size, BLOCK)):
        expected = sum((block + number + rank) % 80 for rank in range(hvd.size()))
        if (wrong := np.flatnonzero(tensor[begin : begin + BLOCK] != expected)).size:
            return begin + int(wrong[0])
    return -1


def _run(plane: str, sizes: list[int]) -> None:
    hosts = HOSTS[plane]
    needed = len(hosts) * sum(sizes) + 2 * GIB
    available = psutil.virtual_memory().available
    if available < needed:
        pytest.skip(f"needs {needed / GIB:.0f} GiB of free memory, and {available / GIB:.0f} are there")
    outcomes = process_ranks(
        len(hosts),
        reduce_in_place,
        sizes,
        environ={"HVDLITE_PLANE": plane, "HVDLITE_FUSION_THRESHOLD": str(8 * GIB)},
        environ_by_rank={rank: {"HVDLITE_HOSTID": host} for rank, host in enumerate(hosts)},
    )
    for outcome in outcomes:
        assert outcome.result() == [-1] * len(sizes)


@pytest.mark.parametrize("plane", HOSTS)
def test_a_tensor_of_more_than_2_gib(plane: str) -> None:
    _run(plane, [2 * GIB + 12345])


@pytest.mark.parametrize("plane", ["shm", "ring"])
def test_a_batch_of_more_than_4_gib(plane: str) -> None:
    _run(plane, [3 * GIB // 2 + 1, 3 * GIB // 2, 3 * GIB // 2 - 1])

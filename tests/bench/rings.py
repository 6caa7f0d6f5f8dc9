"""One rank of a job that `tests.bench.hosts` starts: what checksums, encryption and connections do to a ring.

    python -m tests.bench.rings BYTES ITERATIONS RING...

Opens these rings between the same ranks, and measures an all-reduce of float32 in place over each of them, in turns. A
ring is ``plain``, ``checked`` or ``encrypted``, or the number of its connections to each neighbour, as in ``4``. Each
rank prints a line of JSON: the median times on the slowest rank, in seconds, by ring.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

import hvdlite as hvd
from hvdlite.bench.measuring.timing import Candidate, measure
from hvdlite.planes.ring.plane import RingPlane
from hvdlite.scope import Scope
from hvdlite.session import current
from hvdlite.settings import Settings
from hvdlite.tensors.buffer import Spans
from hvdlite.tensors.dtypes import DType

_NAME_BYTES = 64
_START_S = 20.0
_WARMUP = 2


class _Plain(RingPlane):
    """Without checksums, for which there is no setting: nobody should."""

    def _open(self, options: Settings, has_checksums: bool) -> ctypes.c_void_p:
        return super()._open(options, False)


def main(nbytes: int, iterations: int, labels: Sequence[str]) -> None:
    hvd.init()
    planes = {label: _connected(label) for label in labels}
    tensor = np.empty(nbytes // 4, np.float32)
    times = measure([_candidate(label, plane, tensor) for label, plane in planes.items()], iterations, _WARMUP)
    print(json.dumps({label: float(np.median(taken.times)) for label, taken in times.items()}), flush=True)
    for plane in planes.values():
        plane.close()
    hvd.shutdown()


def _connected(label: str) -> RingPlane:
    members = current().membership
    options = replace(
        current().options,
        ring_connections=int(label) if label.isdecimal() else 1,
        encrypt_data=label == "encrypted",
    )
    plane = (_Plain if label == "plain" else RingPlane)(members.among(range(members.size), f"ring {label}"), options)
    name = np.frombuffer(plane.address.encode().ljust(_NAME_BYTES), np.uint8)
    names = hvd.allgather(name).reshape(hvd.size(), _NAME_BYTES)
    right = names[(hvd.rank() + 1) % hvd.size()].tobytes().decode().strip()
    plane.connect(right, Scope.of(_START_S))
    return plane


def _candidate(label: str, plane: RingPlane, tensor: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Candidate:
    spans: Spans = np.array([[tensor.ctypes.data, tensor.ctypes.data, tensor.nbytes]], np.uint64)

    def run() -> None:
        plane.allreduce(spans, DType.FLOAT32, int(hvd.Sum), 1.0, 1.0)

    def is_right() -> bool:
        tensor[:] = plane.rank
        run()
        return bool((tensor == sum(range(plane.size))).all())

    return Candidate(label, run, is_right)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

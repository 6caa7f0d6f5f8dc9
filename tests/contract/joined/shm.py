"""The shared-memory plane joins the contract suite. Its chunks are short, so that small vectors take many of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from hvdlite.planes.base import DataPlane
from hvdlite.planes.shm import segment
from hvdlite.planes.shm.plane import ShmPlane, geometry
from hvdlite.settings import Settings
from tests.contract.planes import PlaneUnderTest


@contextmanager
def _open(size: int, progress_timeout_s: float) -> Iterator[Sequence[DataPlane]]:
    options = Settings(shm_chunk=4096, progress_timeout=progress_timeout_s)
    shape = geometry(options, size, cores=2)
    with ExitStack() as stack:
        fds = [segment.create(shape.nbytes)]
        fds += [os.dup(fds[0]) for _ in range(1, size)]
        yield [stack.enter_context(closing(ShmPlane(fd, rank, size, shape))) for rank, fd in enumerate(fds)]


PLANE = PlaneUnderTest("shm", _open, sizes=(1, 2, 3, 4, 5), folds_in_rank_order=True)

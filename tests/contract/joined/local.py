"""The plane of one rank joins the contract suite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from hvdlite.planes.base import DataPlane
from hvdlite.planes.local import LocalPlane
from tests.contract.planes import PlaneUnderTest


@contextmanager
def _open(size: int, progress_timeout_s: float) -> Iterator[Sequence[DataPlane]]:
    with closing(LocalPlane()) as plane:
        yield [plane]


PLANE = PlaneUnderTest("local", _open, sizes=(1,), folds_in_rank_order=True)

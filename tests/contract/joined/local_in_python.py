"""The plane of one rank joins again, as it is without the native library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from unittest.mock import patch

from hvdlite import native
from hvdlite.planes.base import DataPlane
from hvdlite.planes.local import LocalPlane
from tests.contract.planes import PlaneUnderTest


@contextmanager
def _open(size: int, progress_timeout_s: float) -> Iterator[Sequence[DataPlane]]:
    with patch.object(native, "absence", lambda: "hidden"), closing(LocalPlane()) as plane:
        yield [plane]


PLANE = PlaneUnderTest("local in Python", _open, sizes=(1,), folds_in_rank_order=True)

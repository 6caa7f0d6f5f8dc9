"""The ring over ZeroMQ joins the contract suite."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from hvdlite.planes.base import DataPlane
from hvdlite.settings import Settings
from tests.contract.planes import PlaneUnderTest, connected


def open_ring(size: int, progress_timeout_s: float) -> AbstractContextManager[Sequence[DataPlane]]:
    """The connected planes of a ring of ``size`` ranks."""
    return connected("a" * size, Settings(plane="zmq", progress_timeout=progress_timeout_s))


PLANE = PlaneUnderTest("zmq", open_ring, sizes=(2, 3, 5), folds_in_rank_order=False)

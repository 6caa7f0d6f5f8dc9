"""The plane that goes through the memory of the host, in the suite that planes of CPUs pass: with arrays of the host.

CUDA copies those as it copies the memory of GPUs, and pieces are short, so that small vectors take many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from hvdlite.planes.base import DataPlane
from hvdlite.planes.staged.plane import StagedPlane
from tests.contract.joined.shm import PLANE as SHM
from tests.contract.planes import Group, PlaneUnderTest
from tests.contract.test_allgather import *  # noqa: F403
from tests.contract.test_allreduce import *  # noqa: F403
from tests.contract.test_alltoall import *  # noqa: F403
from tests.contract.test_life import (  # noqa: F401 - what has a parameter of its own is left out
    test_a_closed_plane_may_be_closed_again,
    test_abort_ends_a_waiting_rank_with_its_error,
    test_nobody_leaves_a_barrier_before_all_have_entered,
    test_the_first_abort_counts,
)
from tests.contract.test_programs import *  # noqa: F403
from tests.contract.test_reducescatter import *  # noqa: F403
from tests.gpu.fake import Fakes
from tests.harness.patience import PATIENCE_S


def _waited(name: str) -> Callable[..., None]:
    def collective(self: StagedPlane, *arguments: Any) -> None:
        if (completion := getattr(StagedPlane, name)(self, *arguments)) is not None:
            completion.wait()

    return collective


class BlockingPlane(StagedPlane):
    allreduce, allgather, reducescatter, alltoall, barrier = map(  # type: ignore[assignment]
        _waited, ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
    )


@contextmanager
def _open(size: int, progress_timeout_s: float) -> Iterator[Sequence[DataPlane]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                closing(BlockingPlane(inner, local_rank=inner.rank, label=inner.rank, piece_bytes=4096))
            )
            for inner in stack.enter_context(SHM.open(size, progress_timeout_s))
        ]


PLANE = PlaneUnderTest("staged", _open, sizes=(1, 2, 3), folds_in_rank_order=True)


@pytest.fixture(params=PLANE.sizes)
def group(fakes: Fakes, request: pytest.FixtureRequest) -> Iterator[Group]:
    with PLANE.open(request.param, PATIENCE_S) as planes:
        yield Group(PLANE, planes)


@pytest.fixture
def trio(fakes: Fakes) -> Iterator[Group]:
    with PLANE.open(3, PATIENCE_S) as planes:
        yield Group(PLANE, planes)

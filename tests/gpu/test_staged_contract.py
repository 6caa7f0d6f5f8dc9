"""The plane that goes through the memory of the host, in the suite that planes of CPUs pass: with arrays of the host.

CUDA copies those as it copies the memory of GPUs, and pieces are short, so that small vectors take many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from inspect import signature
from typing import Any

import pytest

from hvdlite.planes.base import DataPlane
from hvdlite.planes.staged.plane import StagedPlane
from tests.contract import test_allgather, test_allreduce, test_alltoall, test_life, test_programs, test_reducescatter
from tests.contract.joined.shm import PLANE as SHM
from tests.contract.planes import Group, PlaneUnderTest
from tests.gpu.fake import Fakes
from tests.harness.members import member
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
            stack.enter_context(closing(BlockingPlane(member(inner.rank, "a" * size), inner, piece_bytes=4096)))
            for inner in stack.enter_context(SHM.open(size, progress_timeout_s))
        ]


# Names repeat among the suites. Tests without a group open planes of their own.
for _suite in (test_allgather, test_allreduce, test_alltoall, test_life, test_programs, test_reducescatter):
    for _name, _test in vars(_suite).items():
        if _name.startswith("test_") and {"group", "trio"} & set(signature(_test).parameters):
            globals()[f"{_suite.__name__.rpartition('.')[2]}_{_name[5:]}"] = _test

PLANE = PlaneUnderTest("staged", _open, sizes=(1, 3), folds_in_rank_order=True)


@pytest.fixture(params=PLANE.sizes)
def group(fakes: Fakes, request: pytest.FixtureRequest) -> Iterator[Group]:
    with PLANE.open(request.param, PATIENCE_S) as planes:
        yield Group(PLANE, planes)


@pytest.fixture
def trio(fakes: Fakes) -> Iterator[Group]:
    with PLANE.open(3, PATIENCE_S) as planes:
        yield Group(PLANE, planes)

"""The groups of the tests: each plane that joined, at each size that it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.joined import PLANES
from tests.contract.planes import Group, PlaneUnderTest
from tests.harness.patience import PATIENCE_S

_ALL: dict[str, Any] = {
    "params": [(kind, size) for kind in PLANES for size in kind.sizes],
    "ids": lambda param: f"{param[0].name}-{param[1]}",
}
# Three ranks, for what needs peers but no grid of sizes.
_TRIOS: dict[str, Any] = {
    "params": [(kind, 3) for kind in PLANES if 3 in kind.sizes],
    "ids": lambda param: param[0].name,
}


def _opened(param: tuple[PlaneUnderTest, int]) -> Iterator[Group]:
    kind, size = param
    with kind.open(size, PATIENCE_S) as planes:
        yield Group(kind, planes)


@pytest.fixture(scope="module", **_ALL)
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    """A group for all tests of a file."""
    yield from _opened(request.param)


@pytest.fixture(scope="module", **_TRIOS)
def trio(request: pytest.FixtureRequest) -> Iterator[Group]:
    """A group for all tests of a file."""
    yield from _opened(request.param)


@pytest.fixture(**_ALL)
def own_group(request: pytest.FixtureRequest) -> Iterator[Group]:
    """A group that the test may end."""
    yield from _opened(request.param)


@pytest.fixture(**_TRIOS)
def own_trio(request: pytest.FixtureRequest) -> Iterator[Group]:
    """A group that the test may end."""
    yield from _opened(request.param)

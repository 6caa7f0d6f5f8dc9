"""The ``group`` of every test: each plane that joined, at each size that it has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.joined import PLANES
from tests.contract.planes import Group
from tests.harness.patience import PATIENCE_S


@pytest.fixture(params=[(kind, size) for kind in PLANES for size in kind.sizes], ids=lambda p: f"{p[0].name}-{p[1]}")
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    kind, size = request.param
    with kind.open(size, PATIENCE_S) as planes:
        yield Group(kind, planes)


@pytest.fixture(params=[kind for kind in PLANES if 3 in kind.sizes], ids=lambda kind: kind.name)
def trio(request: pytest.FixtureRequest) -> Iterator[Group]:
    """Three ranks, for what needs peers but no grid of sizes."""
    with request.param.open(3, PATIENCE_S) as planes:
        yield Group(request.param, planes)

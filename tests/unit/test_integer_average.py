"""An average of integers is exact division, truncated, at every number of ranks."""

from __future__ import annotations

import math

import pytest

from hvdlite.engine.batch import arithmetic
from hvdlite.tensors.dtypes import Average, DType
from tests.unit.replicas import request


@pytest.mark.parametrize("sign", [1, -1])
def test_whole_averages_stay_whole(sign: int) -> None:
    for size in range(1, 2000):
        _, _, scale = arithmetic(request("t", dtype=DType.INT64, op=Average), size)
        for average in (1, 3, 1000, 123_457):
            assert math.trunc(sign * average * size * scale) == sign * average
            assert math.trunc(sign * (average * size - 1) * scale) == sign * (average - 1)
            assert math.trunc(sign * (average * size + size - 1) * scale) == sign * average

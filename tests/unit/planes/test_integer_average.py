"""An average of integers is exact division, truncated, at every number of ranks, in native code and in Python."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hvdlite import native
from hvdlite.engine.batch import arithmetic
from hvdlite.members.topology import MAX_RANKS
from hvdlite.planes.arithmetic import closed, opened
from hvdlite.tensors.dtypes import Average, DType, Sum
from tests.contract import oracle
from tests.contract.planes import sending, spans_of
from tests.unit.replicas import request


def averages(values: list[int], dtype: DType, size: int, postscale: float) -> tuple[list[int], list[int]]:
    """What native code and Python make of ``size`` ranks that all have ``values``; partial results are folded here."""
    array = np.array(values, oracle.STORAGE[dtype])
    sums = opened(array, dtype, Average, 1.0) * size
    assert sums.nbytes >= 2 * array.nbytes
    partials, result = np.empty_like(sums), np.empty_like(array)
    reduction, rows = native.Reduction(int(dtype), Average, 1.0, postscale), sending(array)
    of_result = spans_of((result, result))
    library: Any = native.library()
    library.hvd_open_partials(partials.ctypes.data, rows.ctypes.data, 1, ctypes.byref(reduction))
    partials *= size
    with np.errstate(over="ignore"):  # by the factor, to infinity
        in_python = closed(sums, dtype, Average, postscale)
    library.hvd_close_partials(partials.ctypes.data, of_result.ctypes.data, 1, ctypes.byref(reduction))
    return result.tolist(), in_python.tolist()


@settings(max_examples=400)
@given(
    dtype=st.sampled_from(oracle.INTEGERS),
    size=st.integers(1, MAX_RANKS) | st.sampled_from([2, 3, 49, 1000, MAX_RANKS]),
    factor=st.just(1.0) | st.floats(-4, 4) | st.sampled_from([1e-9, 0.5, 2.0, 1e300]),
    data=st.data(),
)
def test_averages_are_those_of_whole_numbers(dtype: DType, size: int, factor: float, data: st.DataObject) -> None:
    limits = np.iinfo(oracle.STORAGE[dtype])
    low, high = int(limits.min), int(limits.max)
    edges = st.sampled_from([low, low + 1, -1 if low else 1, 0, 1, high - 1, high])
    values = data.draw(st.lists(edges | st.integers(low, high), min_size=1, max_size=20))
    wanted = oracle.averages(np.array(values, object) * size, dtype, factor / size).tolist()
    assert averages(values, dtype, size, factor / size) == (wanted, wanted)
    assert factor != 1 or wanted == values


@given(total=st.integers(-(2**63) * MAX_RANKS, (2**63 - 1) * MAX_RANKS), size=st.integers(1, MAX_RANKS))
@example(total=-1, size=2)
@example(total=-(2**63) - 1, size=1)
def test_any_sum_of_the_widest_is_divided_exactly(total: int, size: int) -> None:
    """Whatever the two halves are of which it is made."""
    for borrowed in (0, size - 1):
        sums = np.array([(total >> 32) - borrowed, (total & 0xFFFFFFFF) + (borrowed << 32)])
        result = np.empty(1, np.int64)
        rows, reduction = spans_of((result, result)), native.Reduction(int(DType.INT64), Average, 1.0, 1 / size)
        native.library().hvd_close_partials(sums.ctypes.data, rows.ctypes.data, 1, ctypes.byref(reduction))
        quotient = abs(total) // size * (1 if total >= 0 else -1)
        wanted = min(max(quotient, -(2**63)), 2**63 - 1)
        assert closed(sums, DType.INT64, Average, 1 / size).tolist() == result.tolist() == [wanted]


@pytest.mark.parametrize("dtype", oracle.INTEGERS, ids=str)
def test_planes_of_several_ranks_average_integers(dtype: DType) -> None:
    assert arithmetic(request("t", dtype=dtype, op=Average), 3) == (dtype, Average, 1 / 3)
    assert arithmetic(request("t", dtype=dtype, op=Average), 1) == (dtype, Sum, 1.0)
    assert arithmetic(request("t", dtype=DType.FLOAT32, op=Average), 3) == (DType.FLOAT32, Sum, 1 / 3)

"""The description of a numpy array's memory, and the arrays that are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hvdlite.tensors.buffer import address_of, of_array
from hvdlite.tensors.dtypes import DType

_BYTES = np.arange(65, dtype=np.uint8)
_FLOATS = np.zeros(16, np.float32)


def _read_only() -> Any:
    array = np.ones(3, np.float64)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (_FLOATS, DType.FLOAT32),
        (_FLOATS[1:], DType.FLOAT32),  # aligned to its elements, not to 8 bytes
        (_FLOATS.reshape(4, 2, 2), DType.FLOAT32),
        (_BYTES[3:], DType.UINT8),
        (np.array(1.5), DType.FLOAT64),
        (np.zeros((0, 3), np.int16), DType.INT16),
        (np.ones(3, bool), DType.BOOL),
        (_read_only(), DType.FLOAT64),
    ],
    ids=lambda value: str(getattr(value, "shape", value)),
)
def test_memory_is_told_as_numpy_tells_it(array: Any, dtype: DType) -> None:
    assert of_array(array)[:3] == (array.ctypes.data, dtype, array.shape)
    assert of_array(array)[3] is array
    assert address_of(array) == array.ctypes.data


@pytest.mark.parametrize(
    "array",
    [_BYTES[1:].view(np.float32), _FLOATS[::2], np.arange(6.0).reshape(2, 3).T, np.broadcast_to(np.float64(3), (2, 2))],
    ids=["not aligned", "every second", "transposed", "broadcast"],
)
def test_a_copy_is_told_of_what_is_not_contiguous(array: Any) -> None:
    address, _, shape, copy, _ = of_array(array)
    assert (address, shape, copy.flags.c_contiguous) == (copy.ctypes.data, array.shape, True)
    assert not np.shares_memory(array, copy)
    np.testing.assert_array_equal(copy, array)


@pytest.mark.parametrize(
    ("dtype", "told"),
    [
        ("c8", ("complex64", 8)),
        ("u8", ("uint64", 8)),
        ("M8[ns]", ("datetime64[ns]", 8)),
        (">f4", (">f4", 4)),
        ("S3", ("|S3", 3)),
        ("U2", ("<U2", 8)),
        ([("a", "<f4"), ("b", ">i2")], ("[('a', '<f4'), ('b', '>i2')]", 6)),
    ],
    ids=str,
)
def test_other_elements_have_the_name_of_their_dtype(dtype: Any, told: tuple[str, int]) -> None:
    assert of_array(np.zeros(2, dtype))[1] == told


@pytest.mark.parametrize(
    ("array", "is_written", "hint"),
    [
        (_BYTES[1:].view(np.float32), True, "not contiguous and aligned"),
        (_FLOATS[::2], True, "not contiguous and aligned"),
        (_read_only(), True, "read-only"),
        (np.array([object()]), False, "dtype object is not supported: its elements are not bytes of a fixed size"),
        (np.zeros(2, [(f"field {index}", "f4") for index in range(20)]), False, r"pass array.view\('V'\)"),
        ([1.0], False, "expected a numpy array, got list"),
        (np.float32(1), False, "expected a numpy array, got float32"),
        (type("Tensor", (), {"__module__": "torch"})(), False, "hvdlite.torch takes tensors"),
        (SimpleNamespace(dtype=np.dtype(np.float32)), False, "expected a numpy array, got SimpleNamespace"),
    ],
)
def test_what_cannot_be_sent_as_it_is_is_refused(array: Any, is_written: bool, hint: str) -> None:
    with pytest.raises(ValueError, match=hint) as refusal:
        of_array(array, is_written)
    assert refusal.value.__context__ is None  # nothing is printed above it

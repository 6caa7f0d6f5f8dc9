"""The functions that hvdlite calls are declared as the public headers of CUDA and NCCL have them."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from hvdlite.cuda import driver
from hvdlite.cuda.loading import Signatures
from hvdlite.planes.nccl import library as nccl
from hvdlite.tensors.dtypes import DType, Max, Min, Product, Sum
from tests.gpu import recorded

TABLES: dict[str, tuple[Signatures, dict[str, list[str]]]] = {
    "cuda": (driver.SIGNATURES, recorded.CUDA),
    "nccl": (nccl.SIGNATURES, recorded.NCCL),
}
ROWS = [(name, *table) for table in TABLES.values() for name in table[1]]

_SCALARS = {
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "unsigned char": ctypes.c_ubyte,
    "size_t": ctypes.c_size_t,
    "unsigned long long": ctypes.c_ulonglong,
}
_STRUCTURES = {"ncclUniqueId": nccl.UniqueId, "ncclConfig_t": nccl.Config, "CUuuid": driver.Uuid}


def _declared_as(c_type: str) -> Any:
    """The ctypes that stands for a type of C. Addresses of memory and opaque objects are plain addresses."""
    c_type = c_type.removeprefix("const ")
    if c_type in _STRUCTURES:
        return _STRUCTURES[c_type]
    behind = recorded.TYPES.get(c_type, c_type)
    if behind in _SCALARS:
        return _SCALARS[behind]
    if c_type == "char*":
        return ctypes.c_char_p
    if behind == "void*" or behind.startswith("struct "):
        return ctypes.c_void_p
    assert c_type.endswith("*"), c_type
    return ctypes.POINTER(_declared_as(c_type[:-1]))


@pytest.mark.parametrize("table", TABLES)
def test_what_is_called_was_recorded(table: str) -> None:
    declared, expected = TABLES[table]
    assert set(declared) == set(expected)


@pytest.mark.parametrize(("name", "declared", "expected"), ROWS, ids=[row[0] for row in ROWS])
def test_results_and_parameters_agree(name: str, declared: Signatures, expected: dict[str, list[str]]) -> None:
    result, parameters = declared[name]
    assert result is (ctypes.c_char_p if name in recorded.TEXTS else ctypes.c_int)
    if name == "cuPointerGetAttribute":  # what it writes depends on the attribute
        assert parameters[0] is ctypes.c_void_p
    assert list(parameters) == [_declared_as(each) for each in expected[name]]


def test_structures_have_the_recorded_fields() -> None:
    fields = [(name, kind) for name, kind in nccl.Config._fields_]
    inside = recorded.TYPES["ncclConfig_t"].removeprefix("struct {").removesuffix("}")
    expected = [each.strip().rsplit(" ", 1) for each in inside.split(";") if each.strip()]
    assert fields == [(name, _SCALARS[kind]) for kind, name in expected]
    assert (ctypes.sizeof(nccl.UniqueId), ctypes.sizeof(driver.Uuid)) == (128, 16)


def test_the_same_numbers_mean_the_same() -> None:
    found = {
        "CUDA_SUCCESS": driver.SUCCESS,
        "CUDA_ERROR_INVALID_VALUE": driver.INVALID_VALUE,
        "CUDA_ERROR_OUT_OF_MEMORY": driver.OUT_OF_MEMORY,
        "CUDA_ERROR_NO_DEVICE": driver.NO_DEVICE,
        "CUDA_ERROR_NOT_READY": driver.NOT_READY,
        "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT": driver.CAPTURE_IMPLICIT,
        "CU_STREAM_CAPTURE_STATUS_NONE": driver.CAPTURE_NONE,
        "CU_STREAM_CAPTURE_MODE_RELAXED": driver.CAPTURE_RELAXED,
        "CU_STREAM_NON_BLOCKING": driver.STREAM_NON_BLOCKING,
        "CU_EVENT_BLOCKING_SYNC": driver.EVENT_BLOCKING_SYNC,
        "CU_EVENT_DISABLE_TIMING": driver.EVENT_DISABLE_TIMING,
        "CU_MEMHOSTALLOC_PORTABLE": driver.HOST_ALLOC_PORTABLE,
        "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": driver.CAPABILITY_MAJOR,
        "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": driver.CAPABILITY_MINOR,
        "CU_POINTER_ATTRIBUTE_MEMORY_TYPE": driver.POINTER_MEMORY_TYPE,
        "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL": driver.POINTER_DEVICE_ORDINAL,
        "CU_MEMORYTYPE_DEVICE": driver.MEMORY_ON_DEVICE,
        "ncclSuccess": nccl.SUCCESS,
        "ncclInProgress": nccl.IN_PROGRESS,
        "ncclScalarHostImmediate": nccl.SCALAR_ON_HOST,
        "ncclAvg": nccl.AVERAGE,
        "NCCL_API_MAGIC": nccl.Config.without_blocking().magic,
    }
    operations = {"ncclSum": Sum, "ncclProd": Product, "ncclMax": Max, "ncclMin": Min}
    found |= {name: nccl.OPERATIONS[op] for name, op in operations.items()}
    types = {
        f"nccl{str(dtype).capitalize().removesuffix('fn').replace('_', '')}": number
        for dtype, number in nccl.TYPES.items()
    }
    assert {**found, **types} == recorded.NUMBERS
    assert set(DType) - set(nccl.TYPES) == {DType.BOOL, DType.INT16}

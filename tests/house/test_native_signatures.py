"""hvdlite/native.py declares exactly the functions, constants and structures of native/include/hvdlite.h."""

from __future__ import annotations

import ctypes
import re
import subprocess
from typing import Any

import pytest

from hvdlite import native
from hvdlite.control import page
from hvdlite.engine import calls
from hvdlite.tensors import dtypes
from tests.harness.patience import PATIENCE_S
from tests.house.tree import ROOT

HEADER = re.sub(r"//.*", "", (ROOT / "native/include/hvdlite.h").read_text())
FUNCTIONS = {
    match["name"]: (match["result"].strip(), match["arguments"])
    for match in re.finditer(r"HVD_API (?P<result>[^;(]+?)(?P<name>hvd_\w+)\((?P<arguments>[^)]*)\);", HEADER)
}
CONSTANTS = {name: int(value) for name, value in re.findall(r"\bHVD_(\w+) = (\d+)", HEADER)}

SCALARS: dict[str, Any] = {
    "void": None,
    "double": ctypes.c_double,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "hvd_status": ctypes.c_int32,
}
POINTERS: dict[str, set[Any]] = {
    "const char*": {ctypes.c_char_p},
    "const void* const*": {ctypes.POINTER(ctypes.c_void_p)},
    "const hvd_reduction*": {ctypes.POINTER(native.Reduction)},
    "const uint64_t*": {ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)},
    "hvd_page**": {ctypes.POINTER(ctypes.c_void_p)},
    "hvd_arena**": {ctypes.POINTER(ctypes.c_void_p)},
    "hvd_shm**": {ctypes.POINTER(ctypes.c_void_p)},
    "hvd_ring**": {ctypes.POINTER(ctypes.c_void_p)},
}


def _declared_as(c_type: str) -> set[Any]:
    """The ctypes that may stand for a C type. Arrays and handles are passed as plain addresses."""
    if c_type in SCALARS:
        return {SCALARS[c_type]}
    return POINTERS.get(c_type, {ctypes.c_void_p})


def _types_of(arguments: str) -> list[str]:
    if arguments.strip() in ("", "void"):
        return []
    return [re.sub(r"\s+", " ", argument.strip().rsplit(" ", 1)[0]) for argument in arguments.split(",")]


def test_the_same_functions_are_declared() -> None:
    assert set(native.SIGNATURES) == set(FUNCTIONS)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_result_and_arguments_agree(name: str) -> None:
    result, arguments = FUNCTIONS[name]
    declared_result, declared_arguments = native.SIGNATURES[name]
    assert declared_result in _declared_as(result)
    c_types = _types_of(arguments)
    assert len(declared_arguments) == len(c_types)
    for declared, c_type in zip(declared_arguments, c_types, strict=True):
        assert declared in _declared_as(c_type), f"{c_type} is declared as {declared}"


def test_the_same_numbers_mean_the_same() -> None:
    expected = {member.name: int(member) for member in dtypes.DType}
    statuses = ("OK", "ABORTED", "TIMED_OUT", "CORRUPT", "INVALID", "SYSTEM", "BUSY")
    expected |= {name: getattr(native, name) for name in statuses}
    expected |= {name.upper(): op for op, name in dtypes.OP_NAMES.items() if op != dtypes.Adasum}
    expected |= {name: value for name, value in vars(native).items() if name.startswith(("DECIDED_", "CALL_"))}
    expected |= {"ABI_VERSION": native.ABI_VERSION}
    assert expected == CONSTANTS


STRUCTURES = {
    "hvd_reduction": native.Reduction,
    "hvd_spin": native.Spin,
    "hvd_decision": native.Decision,
    "hvd_news": native.News,
    "hvd_piece": native.Piece,
    "hvd_recipe": native.Recipe,
    "hvd_call": native.Call,
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_have_the_fields_of_the_header(name: str) -> None:
    body = re.search(rf"typedef struct \{{([^}}]*)\}} {name};", HEADER)
    assert body is not None
    expected = [(each, c_type.strip()) for c_type, each in re.findall(r"([\w* ]+?)\s*(\w+);", body[1])]
    declared = list(STRUCTURES[name]._fields_)
    assert [each for each, _ in declared] == [each for each, _ in expected]
    for (each, c_type), (_, declared_type) in zip(expected, declared, strict=True):
        assert SCALARS.get(c_type, declared_type) is declared_type, each
        assert (c_type in SCALARS) == (declared_type in SCALARS.values()), each


def test_the_library_exports_these_functions_and_nothing_else() -> None:
    command = ["nm", "--dynamic", "--defined-only", "--format=just-symbols", str(native.LIBRARY)]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout.split()
    assert set(symbols) == set(FUNCTIONS)


def test_calls_are_packed_and_unpacked_as_the_structures_lie() -> None:
    call = native.Call()
    page._pack_call(call, page._ASKED_AT, 1, 2, 3, 4)
    assert (call.version, call.tensors, call.count, call.outcome) == (1, 2, 3, 4)
    report = [name for name, _ in native.Call._fields_]
    report = report[report.index("news_count") :]
    for number, name in enumerate(report):
        setattr(call, name, number)
    assert page._unpack_report(call, page._REPORT_AT) == tuple(range(len(report)))
    carried = native.Carried()
    calls._pack_addresses(carried, 0, 1, 2)
    assert (carried.source, carried.target) == (1, 2)

"""Checks agents' descriptions of their hosts: they run on other machines, and may send anything.

Functions raise ValueError that says what is wrong with a description. Only fields of the tables are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..agents.fields import count, field, figure, shown, text

_Check = Callable[[Any, str], Any]
_MAX_ROWS: Final = 256  # of a list


def parse_machine(answer: Any) -> dict[str, Any]:
    """Parses the result of `machine.describe_machine`."""
    return _checked(answer, _MACHINE)


def parse_software(answer: Any) -> dict[str, Any]:
    """Parses the result of `software.examine`: only ``problem`` if there are no versions."""
    has_versions = "hvdlite" in field({"software": answer}, "software", dict)
    found = _checked(answer, {**_PROBLEM, **(_VERSIONS if has_versions else {})})
    if found["problem"]:
        return found
    has_gpu_libraries = "without_cuda" in answer  # else they have crashed
    return found | _checked(answer, {**_WORKING, **(_GPU_LIBRARIES if has_gpu_libraries else {})})


def parse_clock(answer: Any) -> float:
    """The seconds of the host's wall clock."""
    return figure({"clock": answer}, "clock")


def _checked(answer: Any, table: Mapping[str, _Check]) -> dict[str, Any]:
    return {name: check(answer, name) for name, check in table.items()}


def _or_none(check: _Check) -> _Check:
    def checked(answer: Any, name: str) -> Any:
        is_none = isinstance(answer, Mapping) and name in answer and answer[name] is None
        return None if is_none else check(answer, name)

    return checked


def _texts(answer: Any, name: str) -> list[str]:
    return [shown(row) for row in field(answer, name, list)[:_MAX_ROWS]]


def _gpus(answer: Any, name: str) -> list[dict[str, str]]:
    return [_checked(row, _GPU) for row in field(answer, name, list)[:_MAX_ROWS]]


def _versions(answer: Any, name: str) -> dict[str, str]:
    rows = list(field(answer, name, dict).items())[:_MAX_ROWS]
    return {shown(module): shown(version) for module, version in rows}


def _is_true(answer: Any, name: str) -> bool:
    return bool(field(answer, name, bool))


_GPU: Final[Mapping[str, _Check]] = {"name": text, "memory_mib": text, "driver": text}
_MACHINE: Final[Mapping[str, _Check]] = {
    "kernel": text,
    "cores": count,
    "cores_limit": _or_none(figure),
    "load": figure,
    "memory": count,
    "free_memory": count,
    "memory_limit": _or_none(count),
    "used_swap": count,
    "shm": count,
    "files": _or_none(count),
    "locked_memory": _or_none(count),
    "infiniband": _texts,
    "gpus": _gpus,
}
_PROBLEM: Final[Mapping[str, _Check]] = {"problem": text}
_WORKING: Final[Mapping[str, _Check]] = {"without_native": text, "wakeup_us": figure}
_GPU_LIBRARIES: Final[Mapping[str, _Check]] = {"cuda": text, "without_cuda": text, "nccl": text, "without_nccl": text}
_VERSIONS: Final[Mapping[str, _Check]] = {
    "python": text,
    "executable": text,
    "hvdlite": text,
    "abi": count,
    "library": text,
    "pyzmq": text,
    "zmq": text,
    "has_curve": _is_true,
    "frameworks": _versions,
}

"""Checks what agents report of their hosts. Functions raise ValueError, and keep only the fields of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..stream.fields import Check, checked, each, exactly, integer, mapping, number, optional, short

_MAX_ROWS: Final = 256  # of a list
_ANSWER: Final = "the agent's answer"
_count: Final = integer(0, (1 << 63) - 1)
_GPU: Final = dict.fromkeys(("name", "memory_mib", "driver"), short)
_MACHINE: Final[Mapping[str, Check]] = {
    "kernel": short,
    "cores": _count,
    "cores_limit": optional(number()),
    "load": number(),
    "memory": _count,
    "free_memory": _count,
    "memory_limit": optional(_count),
    "used_swap": _count,
    "shm": _count,
    "files": optional(_count),
    "locked_memory": optional(_count),
    "infiniband": each(short, _MAX_ROWS),
    "gpus": each(lambda gpu: checked(_ANSWER, _GPU, gpu), _MAX_ROWS),
}
_PROBLEM: Final = {"problem": short}
_WORKING: Final[Mapping[str, Check]] = {"without_native": short, "wakeup_us": number()}
_GPU_LIBRARIES: Final = dict.fromkeys(("cuda", "without_cuda", "nccl", "without_nccl"), short)
_VERSIONS: Final[Mapping[str, Check]] = {
    **dict.fromkeys(("python", "executable", "hvdlite", "library", "pyzmq", "zmq"), short),
    "abi": _count,
    "has_curve": exactly(bool),
    "frameworks": mapping(short),
}


def parse_machine(answer: Any) -> dict[str, Any]:
    """The result of `machine.describe_machine`."""
    return checked(_ANSWER, _MACHINE, answer)


def parse_software(answer: Any) -> dict[str, Any]:
    """The result of `software.examine`: only ``problem`` if there are no versions."""
    found = checked(_ANSWER, _PROBLEM, answer)
    if "hvdlite" in answer:
        found |= checked(_ANSWER, _VERSIONS, answer)
    if not found["problem"]:
        has_gpu_libraries = "without_cuda" in answer  # else they have crashed
        found |= checked(_ANSWER, {**_WORKING, **(_GPU_LIBRARIES if has_gpu_libraries else {})}, answer)
    return found


def parse_clock(answer: Any) -> float:
    """The seconds of the host's wall clock."""
    return float(checked(_ANSWER, {"clock": number()}, {"clock": answer})["clock"])

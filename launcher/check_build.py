"""The report of ``hvdrun --check-build``: what is available on this machine, and why the rest is not."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from hvdlite.version import __version__

from .agent.software import FRAMEWORKS, examine

_INSTRUCTIONS: Final = ("f16c", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "sse4_2", "asimd", "asimdhp")


def describe_build() -> Iterator[str]:
    """The lines of the report."""
    yield f"hvdlite {__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield f"cores: {len(os.sched_getaffinity(0))}; instructions: {' '.join(_instructions()) or 'unknown'}"
    found = examine()
    problem = found["problem"] or found["without_native"]
    needs = problem and "needs the native library"
    yield ""
    yield "Native library:"
    yield _line(not problem, f"ABI {found.get('abi', '?')}: {found.get('library', '?')}", problem)
    messaging = "" if found.get("has_curve") else "pyzmq is missing or was built without CURVE; install it from PyPI"
    yield ""
    yield "Messages:"
    yield _line(not messaging, f"pyzmq {found.get('pyzmq', '?')}, ZeroMQ {found.get('zmq', '?')}, CURVE", messaging)
    yield ""
    yield "Data planes:"
    yield _line(True, "local: one rank", "")
    yield _line(not problem, "shm: ranks of one host", needs)
    yield _line(not problem, "ring, hierarchical: ranks of several hosts", needs)
    yield _line(not messaging, f"zmq: any ranks, in Python{'; what jobs use here' if problem else ''}", messaging)
    yield ""
    yield "GPUs:"
    yield from _gpus(found)
    yield ""
    yield "Frameworks:"
    for name, module in FRAMEWORKS:
        version = found.get("frameworks", {}).get(module)
        has_front_end = find_spec(f"hvdlite.{module}") is not None
        reason = "not installed" if has_front_end else "hvdlite has no front end for it"
        yield _line(has_front_end and version is not None, f"{name} {version or ''}".rstrip(), reason)
    if "tensorflow" in found.get("frameworks", {}):
        obstacle = found.get("without_operations", "")
        yield _line(
            not obstacle, "compiled operations in TensorFlow's graphs", f"{obstacle}; tf.numpy_function is used"
        )


def _gpus(found: Mapping[str, Any]) -> Iterator[str]:
    crash = "it crashed when it was loaded, or took too long"
    cuda = f"CUDA {found['cuda']}: {found['visible_gpus']} GPU(s)" if found.get("cuda") else "CUDA"
    yield _line(cuda != "CUDA", cuda, found.get("without_cuda", crash))
    nccl = f"NCCL {found['nccl']}: {found['nccl_library']}" if found.get("nccl") else "NCCL"
    yield _line(nccl != "NCCL", nccl, found.get("without_nccl", crash))


def _line(is_available: bool, what: str, reason: str) -> str:
    return f"    [{'X' if is_available else ' '}] {what}" + ("" if is_available else f"  ({reason})")


def _instructions() -> list[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    words = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "").split()
    return [name for name in _INSTRUCTIONS if name in words]

"""What ``hvdrun --check-build`` shows: what is built and available on this machine, and why the rest is not.

The native library is tried in a process of its own, so that one that crashes while it is loaded is a line of the
report. Frameworks are looked up, not imported.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import zmq

from hvdlite.version import __version__

_FRAMEWORKS: Final = (("PyTorch", "torch"), ("TensorFlow", "tensorflow"), ("Keras", "keras"), ("JAX", "jax"))
_INSTRUCTIONS: Final = ("f16c", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "sse4_2", "asimd", "asimdhp")
_PROBE_DEADLINE_S: Final = 20
_PROBE: Final = """
import json
from hvdlite import native
found = {"path": str(native.LIBRARY), "abi": native.ABI_VERSION}
try:
    native.library()
except ImportError as error:
    found["problem"] = str(error)
print(json.dumps(found))
"""


def describe_build() -> Iterator[str]:
    """The lines of the report."""
    yield f"hvdlite {__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield f"cores: {len(os.sched_getaffinity(0))}; instructions: {' '.join(_instructions()) or 'unknown'}"
    library = _probe_library()
    problem = library.get("problem", "")
    yield ""
    yield "Native library:"
    yield _line(not problem, f"ABI {library.get('abi', '?')}: {library.get('path', '?')}", problem)
    messaging = "" if zmq.has("curve") else "this pyzmq was built without CURVE; install it from PyPI"
    yield ""
    yield "Messages:"
    yield _line(not messaging, f"pyzmq {zmq.pyzmq_version()}, ZeroMQ {zmq.zmq_version()}, CURVE", messaging)
    yield ""
    yield "Data planes:"
    yield _line(True, "local: one rank", "")
    yield _line(not problem, "shm: ranks of one host", problem and "needs the native library")
    yield _line(not problem, "ring: ranks of several hosts, over ZeroMQ", problem and "needs the native library")
    yield ""
    yield "Frameworks:"
    for name, module in _FRAMEWORKS:
        version = _version(module)
        yield _line(version is not None, f"{name} {version or ''}".rstrip(), "not installed")


def _line(is_available: bool, what: str, reason: str) -> str:
    return f"    [{'X' if is_available else ' '}] {what}" + ("" if is_available else f"  ({reason})")


def _probe_library() -> dict[str, Any]:
    command = [sys.executable, "-c", _PROBE]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_DEADLINE_S)
    except subprocess.TimeoutExpired:
        return {"problem": f"loading it took more than {_PROBE_DEADLINE_S} s"}
    if ended.returncode == 0:
        found: dict[str, Any] = json.loads(ended.stdout)
        return found
    last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
    return {"problem": f"loading it ended with code {ended.returncode}: {last}"}


def _version(module: str) -> str | None:
    if find_spec(module) is None:
        return None
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def _instructions() -> list[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    words = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "").split()
    return [name for name in _INSTRUCTIONS if name in words]

"""The software that a Python has for hvdlite: examined in a process of its own, which may crash, and reported as JSON.

An agent has no site-packages, and a native library that crashes when it is loaded must become a line of a report. So
`examine` starts a new interpreter, in which `describe` and then the library print a line each. What only `describe`
needs is imported there, so that an agent, which imports this file, starts quickly.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import Any, Final

FRAMEWORKS: Final = (("PyTorch", "torch"), ("TensorFlow", "tensorflow"), ("Keras", "keras"), ("JAX", "jax"))
_DEADLINE_S: Final = 20.0
_PROGRAM: Final = """
import json
from hvdlite import native
from hvdlite.launcher.agent.software import describe
print(json.dumps({**describe(), "abi": native.ABI_VERSION, "library": str(native.LIBRARY)}), flush=True)
from hvdlite.spin import wakeup_us
absence = native.absence()
found = {"wakeup_us": 0.0 if absence else round(wakeup_us(), 1), "without_native": absence, "problem": ""}
print(json.dumps(found), flush=True)
from hvdlite.builds import describe_gpus
print(json.dumps(describe_gpus()))
"""


def examine(python: str = sys.executable) -> dict[str, Any]:
    """The findings of `describe`, and ``problem``: why hvdlite does not work there.

    It is empty if hvdlite works. Then ``without_native`` says why the native library cannot be loaded, and is empty if
    it can; ``wakeup_us`` is how long a wake-up takes there, and 0 without the library. With it come the findings of
    `hvdlite.builds.describe_gpus`, unless NVIDIA's libraries crash or take too long. Takes 20 s at most.
    """
    command = [python, "-P", "-c", _PROGRAM]
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        found = _findings(error.stdout or b"")
        return found if "problem" in found else {"problem": f"loading it took more than {_DEADLINE_S:.0f} s"}
    except OSError as error:
        return {"problem": f"{error.strerror}: {python}"}
    found = _findings(ended.stdout)
    if "problem" not in found:  # it did not come to the line about the native library
        lines = ended.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        found["problem"] = f"loading it ended with code {ended.returncode}: {lines[-1]}"
    return found


def _findings(output: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in output.decode(errors="replace").splitlines():
        with suppress(ValueError):
            found |= json.loads(line)
    return found


def describe() -> dict[str, Any]:
    """The versions in this Python. Needs its site-packages."""
    import zmq

    from hvdlite.version import __version__

    frameworks = {module: version for _, module in FRAMEWORKS if (version := _version(module)) is not None}
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "hvdlite": __version__,
        "pyzmq": zmq.pyzmq_version(),
        "zmq": zmq.zmq_version(),
        "has_curve": zmq.has("curve"),
        "frameworks": frameworks,
        "without_operations": _obstacle_to_operations(frameworks["tensorflow"]) if "tensorflow" in frameworks else "",
    }


def _obstacle_to_operations(version: str) -> str:
    """Why collectives in TensorFlow's graphs will not be compiled operations; empty if they will."""
    import runpy
    from importlib.util import find_spec
    from pathlib import Path

    from hvdlite.settings import cache_home

    if os.environ.get("HVDLITE_TENSORFLOW_ROUTE", "").strip().lower() == "numpy":
        return "HVDLITE_TENSORFLOW_ROUTE=numpy"
    package = find_spec("hvdlite")
    assert package is not None
    assert package.origin is not None
    # Importing it by its name would import TensorFlow, which takes seconds.
    compiling = runpy.run_path(str(Path(package.origin).parent / "tensorflow/operation/compiling.py"))
    return str(compiling["obstacle"](cache_home(), version))


def _version(module: str) -> str | None:
    """The version of a framework, which is looked up and not imported; None if it is not installed."""
    from importlib import metadata
    from importlib.util import find_spec

    if find_spec(module) is None:
        return None
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
        pass
    for distribution in metadata.packages_distributions().get(module, ()):  # such as tensorflow-cpu
        return metadata.version(distribution)
    return "of unknown version"

"""What a Python has of all that hvdlite runs on: asked in a process of its own, which may crash, and answered in JSON.

An agent has no site-packages, and a native library that crashes while it is loaded must be a line of a report. So
`examine` starts the interpreter anew; there `main` prints what it knows line by line, the dangerous part last.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from typing import Any, Final

FRAMEWORKS: Final = (("PyTorch", "torch"), ("TensorFlow", "tensorflow"), ("Keras", "keras"), ("JAX", "jax"))
_DEADLINE_S: Final = 20.0
_COMMAND: Final = ("-P", "-m", "hvdlite.launcher.software")


def examine(python: str = sys.executable) -> dict[str, Any]:
    """What `main` says in ``python``, and ``problem``: why hvdlite does not work there; empty if it does.

    Takes 20 s at most.
    """
    try:
        ended = subprocess.run([python, *_COMMAND], stdin=subprocess.DEVNULL, capture_output=True, timeout=_DEADLINE_S)
    except subprocess.TimeoutExpired:
        return {"problem": f"loading it took more than {_DEADLINE_S:.0f} s"}
    except OSError as error:
        return {"problem": f"{error.strerror}: {python}"}
    found: dict[str, Any] = {}
    for line in ended.stdout.decode(errors="replace").splitlines():
        with suppress(ValueError):
            found |= json.loads(line)
    if "problem" not in found:  # it did not come to the last line
        said = ended.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        found["problem"] = f"loading it ended with code {ended.returncode}: {said[-1]}"
    return found


def main() -> None:
    """Prints versions, then what became of loading the native library."""
    import zmq

    from hvdlite import native
    from hvdlite.version import __version__

    found: dict[str, Any] = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "hvdlite": __version__,
        "abi": native.ABI_VERSION,
        "library": str(native.LIBRARY),
        "pyzmq": zmq.pyzmq_version(),
        "zmq": zmq.zmq_version(),
        "has_curve": zmq.has("curve"),
        "frameworks": {module: version for _, module in FRAMEWORKS if (version := _version(module)) is not None},
    }
    print(json.dumps(found), flush=True)
    try:
        native.library()
    except ImportError as error:
        print(json.dumps({"problem": str(error)}))
    else:
        print(json.dumps({"problem": ""}))


def _version(module: str) -> str | None:
    """The version of a framework, which is looked up and not imported; None if it is not installed."""
    from importlib import metadata
    from importlib.util import find_spec

    if find_spec(module) is None:
        return None
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
        return "of unknown version"


if __name__ == "__main__":
    main()

"""The first lines that an agent's interpreter runs: they find this package without importing it.

The interpreter runs isolated (``-I -S``): no site-packages, no user's PYTHONPATH, no file of the working directory that
happens to be called ``signal.py``. Importing ``hvdlite`` itself would load numpy and ZeroMQ for nothing, so the agent
gets packages of the same names that are only folders, and starts several times as fast. Of all that is installed it may
import psutil, whose folder comes last in its path: the standard library goes first, and nothing else is asked for. It
does so when ranks run, so that psutil has an extension for this interpreter is looked up before.
"""

from __future__ import annotations

import shlex
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from hvdlite import version

_RUN: Final = """
import os, sys, types
from importlib.machinery import EXTENSION_SUFFIXES
for name in "hvdlite", "hvdlite.launcher":
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [sys.argv.pop(1)]
sys.path.append(sys.argv.pop(1))
psutil = sys.path[-1] + "/psutil"
files = os.listdir(psutil) if os.path.isdir(psutil) else []
if not any("." + name.partition(".")[2] in EXTENSION_SUFFIXES for name in files):
    sys.exit("psutil, which hvdlite needs, is not installed for " + sys.executable)
from hvdlite.launcher.agent.agent import main
main()
"""

# On another host: what its Python has installed, else the same path as here, as on a shared disk.
_FIND: Final = """
import os, site, sys
from importlib.util import find_spec
paths = sys.path[:]
site.main()
if not find_spec("hvdlite"):
    site.addsitedir(site.getusersitepackages())
if spec := find_spec("hvdlite"):
    package = spec.submodule_search_locations[0]
    folders = package + "/launcher", os.path.dirname(package) + "/launcher"
    sys.argv[1:3] = package, next(filter(os.path.isdir, folders))
if spec := find_spec("psutil"):
    sys.argv[3] = os.path.dirname(spec.submodule_search_locations[0])
if not os.path.isfile(sys.argv[2] + "/agent/agent.py"):
    sys.exit("hvdlite is not installed for " + sys.executable)
sys.path[:] = paths
"""
# The same path as here if it is there, so that a virtual environment on a shared disk is found.
_CHOOSE_PYTHON: Final = 'python="$1"; shift; [ -x "$python" ] || python=python3; exec "$python" "$@"'


def _folders() -> list[str]:
    """Where this process has hvdlite, its launcher, and psutil, of which the last is empty if there is none."""
    found = PathFinder.find_spec("psutil")
    psutil = "" if found is None or found.origin is None else str(Path(found.origin).parent.parent)
    return [str(Path(version.__file__).resolve().parent), str(Path(__file__).resolve().parent.parent), psutil]


def boot_here() -> list[str]:
    """The interpreter's arguments for an agent of this host."""
    return ["-I", "-S", "-c", _RUN, *_folders()]


def line_elsewhere(python: str, *words: str) -> str:
    """A shell's line, without a newline, that becomes an agent of another host; its `main` gets the ``words``.

    Empty for ``python``: the one at the same path as here, so that a virtual environment on a shared disk is found, or
    else ``python3``.
    """
    boot = ["-I", "-S", "-c", f"exec({_FIND + _RUN!r})", *_folders(), *words]
    if python:
        return shlex.join(["exec", python, *boot])
    return shlex.join(["exec", "sh", "-c", _CHOOSE_PYTHON, "sh", sys.executable, *boot])

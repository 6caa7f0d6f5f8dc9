"""The first lines that an agent's interpreter runs: they find this package without importing it.

The interpreter runs isolated (``-I -S``): no site-packages, no user's PYTHONPATH, no file of the working directory that
happens to be called ``signal.py``. Importing ``hvdlite`` itself would load numpy and ZeroMQ for nothing, so the agent
gets packages of the same names that are only folders, and starts several times as fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hvdlite import version

FOLDERS: Final = (str(Path(version.__file__).resolve().parent), str(Path(__file__).resolve().parent.parent))

_RUN: Final = """
import sys, types
for name in "hvdlite", "hvdlite.launcher":
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [sys.argv.pop(1)]
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
if not os.path.isfile(sys.argv[2] + "/agent/agent.py"):
    sys.exit("hvdlite is not installed for " + sys.executable)
sys.path[:] = paths
"""


def boot_here() -> list[str]:
    """The interpreter's arguments for an agent of this host."""
    return ["-I", "-S", "-c", _RUN, *FOLDERS]


def boot_elsewhere() -> list[str]:
    """The same for another host, in one line each: some shells have no quotes that hold a newline."""
    return ["-I", "-S", "-c", f"exec({_FIND + _RUN!r})", *FOLDERS]

"""Lends the name ``horovod`` to hvdlite, in one process and the programs that it starts only.

Two things make ``import horovod.torch`` find hvdlite. In this process a finder goes before all others; it maps the
names of `hvdlite.compat.names` to the modules listed there. For child processes a folder goes to the front of
``PYTHONPATH``; it holds nothing but a package ``horovod`` that installs that finder when it is imported. So an
installed Horovod is not touched, and other processes never notice.

``python -I`` and ``python -E`` ignore ``PYTHONPATH``, and a folder ``horovod`` beside the running script comes before
it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from hvdlite.compat.finder import HorovodFinder

FOLDER: Final = str(Path(__file__).parents[1] / "horovod" / "path")


def python_path(present: str | None) -> str:
    """The ``PYTHONPATH`` under which ``horovod`` is hvdlite; ``present``, its value so far, comes after."""
    others = [entry for entry in (present or "").split(os.pathsep) if entry != FOLDER] if present else []
    return os.pathsep.join([FOLDER, *others])


def stands_for_horovod() -> bool:
    """True if ``import horovod`` means hvdlite in this process."""
    return any(isinstance(finder, HorovodFinder) for finder in sys.meta_path)


def install_as_horovod() -> None:
    """Makes ``import horovod`` mean hvdlite in this process and in the Python programs that it starts.

    May be called again. Raises ImportError if another ``horovod`` has already been imported.
    """
    if stands_for_horovod():
        return
    file = getattr(sys.modules.get("horovod"), "__file__", None)
    if "horovod" in sys.modules and not (file or "").startswith(FOLDER):
        raise ImportError(
            f"horovod is imported already, from {file}; "
            "call hvdlite.install_as_horovod() before the first import of horovod"
        )
    sys.meta_path.insert(0, HorovodFinder(FOLDER))
    os.environ["PYTHONPATH"] = python_path(os.environ.get("PYTHONPATH"))
    if FOLDER not in sys.path:
        sys.path.insert(1, FOLDER)  # where PYTHONPATH begins; multiprocessing hands sys.path on to its children

"""hvdlite under the name ``horovod``: for one process and the programs that it starts, and for no other.

Two things make ``import horovod.torch`` find hvdlite. In this process a finder goes before all others; it knows the
names of `hvdlite.compat.names` and lends them the modules that stand there. For child processes a folder goes to
the front of ``PYTHONPATH``; it holds nothing but a package ``horovod`` that, when it is imported, installs that finder.
So a Horovod that is installed is not touched, and a process that was not asked never notices.

Python itself decides who looks into ``PYTHONPATH``: not ``python -I`` and ``python -E``, and a folder ``horovod``
beside the script that runs is found before it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from hvdlite.compat.finder import HorovodFinder

FOLDER: Final = str(Path(__file__).parents[1] / "horovod" / "path")


def python_path(present: str | None) -> str:
    """The ``PYTHONPATH`` under which ``horovod`` is hvdlite; ``present`` is what it was, and stays behind it."""
    others = [entry for entry in (present or "").split(os.pathsep) if entry != FOLDER] if present else []
    return os.pathsep.join([FOLDER, *others])


def stands_for_horovod() -> bool:
    """Whether ``import horovod`` means hvdlite in this process."""
    return any(isinstance(finder, HorovodFinder) for finder in sys.meta_path)


def install_as_horovod() -> None:
    """Makes ``import horovod`` mean hvdlite in this process and in the Python programs that it starts.

    May be called again. Raises ImportError if another ``horovod`` is imported already.
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

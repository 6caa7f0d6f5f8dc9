"""Lends the name ``horovod`` to hvdlite, in one process and the programs that it starts only.

Two things make ``import horovod.torch`` find hvdlite. In this process a finder goes before all others; it maps the
names of `hvdlite.compat.names` to the modules listed there. For child processes a folder goes into ``PYTHONPATH``; it
holds nothing but a package ``horovod`` that installs that finder when it is imported. So an installed Horovod is not
touched, and other processes never notice.

There are two such folders. ``FOLDER`` goes to the front of ``PYTHONPATH`` where the user wants hvdlite under that name,
and Horovod's behaviours hold from the start. ``FALLBACK`` goes to its end in every other job of hvdrun. Its package
decides when it is imported, in the rank, whose Python hvdrun does not know. It gives way to any other ``horovod``, and
where hvdlite is missing to none. A program may only be looking for Horovod there, so Horovod's behaviours begin with
the call of ``init`` through that name (`hvdlite.horovod.named`).

``python -I`` and ``python -E`` ignore ``PYTHONPATH``, and a folder ``horovod`` beside the running script comes before
it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hvdlite.compat.finder import HorovodFinder

FOLDER: Final = str(Path(__file__).parents[1] / "horovod" / "path")
FALLBACK: Final = str(Path(__file__).parents[1] / "horovod" / "fallback")
COMMANDS: Final = str(Path(__file__).parents[1] / "horovod" / "command")
"""The folder of the command ``horovodrun``."""

# They look for Horovod while they are imported, and where it is, use it unasked in any rank.
_CHOOSERS: Final = ("pytorch_lightning", "lightning")
_SETTINGS: Final = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "60"}

_stands = False
_is_by_name = False  # `init` was called through the name


def python_path(present: str | None) -> str:
    """The ``PYTHONPATH`` under which ``horovod`` is hvdlite; ``present``, its value so far, comes after."""
    return os.pathsep.join([FOLDER, *_others(present)])


def lend(environment: dict[str, str], choice: str) -> None:
    """Lends the name in processes with ``environment``: always for the ``choice`` 1, never for 0.

    For "auto" it is lent where no Horovod is installed. A ``PYTHONPATH`` under which it is always lent stays as it is.
    """
    present = environment.get("PYTHONPATH")
    if choice == "1":
        environment["PYTHONPATH"] = python_path(present)
        environment.update({**_SETTINGS, **environment})
    elif choice == "auto":
        if FOLDER not in (present or "").split(os.pathsep):
            environment["PYTHONPATH"] = os.pathsep.join([*_others(present), FALLBACK])
    elif is_lent(environment):
        del environment["PYTHONPATH"]
        if others := _others(present):
            environment["PYTHONPATH"] = os.pathsep.join(others)


def is_lent(environment: Mapping[str, str]) -> bool:
    """True if ``import horovod`` may mean hvdlite in processes with ``environment``."""
    return not {FOLDER, FALLBACK}.isdisjoint(environment.get("PYTHONPATH", "").split(os.pathsep))


def _others(path: str | None) -> list[str]:
    return [entry for entry in path.split(os.pathsep) if entry not in (FOLDER, FALLBACK)] if path else []


def stands_for_horovod() -> bool:
    """True if hvdlite behaves as Horovod in this process, where the two differ."""
    return _stands


def settings_of_horovod() -> Mapping[str, str]:
    """The variables for which Horovod has another default, once `init` was called through the name."""
    return _SETTINGS if _is_by_name else {}


@contextmanager
def standing_by_name() -> Iterator[None]:
    """Begins Horovod's behaviours for the call of ``init`` in the block, and takes them back if that fails."""
    global _stands, _is_by_name
    before = _stands, _is_by_name
    _stands = _is_by_name = True
    try:
        yield
    except BaseException:
        _stands, _is_by_name = before
        raise


def stand_in() -> bool:
    """Makes ``import horovod`` mean hvdlite in this process, for the package in ``FALLBACK``; see above.

    Returns False, and does nothing, if a package asks that would choose Horovod instead of what it has chosen so far.
    """
    for name in _CHOOSERS:
        if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
            return False
    if _finder() is None:
        sys.meta_path.insert(0, HorovodFinder())
    return True


def install_as_horovod() -> None:
    """Makes ``import horovod`` mean hvdlite in this process and in the Python programs that it starts.

    May be called again. Raises ImportError if another ``horovod`` has already been imported.
    """
    global _stands
    if _stands and not _is_by_name:
        return
    file = getattr(sys.modules.get("horovod"), "__file__", None)
    if "horovod" in sys.modules and not (file or "").startswith((FOLDER, FALLBACK)):
        raise ImportError(
            f"horovod is imported already, from {file}; "
            "call hvdlite.install_as_horovod() before the first import of horovod"
        )
    if _finder() is None:
        sys.meta_path.insert(0, HorovodFinder(FOLDER))
    _stands = True
    os.environ["PYTHONPATH"] = python_path(os.environ.get("PYTHONPATH"))
    if FOLDER not in sys.path:
        sys.path.insert(1, FOLDER)  # where PYTHONPATH begins; multiprocessing hands sys.path on to its children


def _finder() -> HorovodFinder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, HorovodFinder)), None)

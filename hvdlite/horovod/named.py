"""Horovod's modules where its name is lent to every program: those of hvdlite, with another ``init`` and its relatives.

A program that only looks for Horovod must not change by finding it. So nothing has begun for one that asks under
Horovod's name before it has called ``init`` under that name, whatever it has done under hvdlite's. That call begins
Horovod's behaviours.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

from hvdlite import session
from hvdlite.compat import standing_by_name, stands_for_horovod
from hvdlite.compat.names import MODULES
from hvdlite.horovod.basics import HorovodBasics
from hvdlite.log import logger
from hvdlite.members.process_set import ProcessSet

_OF_A_MODULE: Final = frozenset(
    "__name__ __loader__ __spec__ __package__ __path__ __builtins__ __cached__ __getattr__".split()
)
_has_told = False


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """As `hvdlite.init`, and lets hvdlite stand in for Horovod in this process from now on, which rank 0 says once."""
    global _has_told
    is_asked_for = stands_for_horovod()
    with standing_by_name():
        session.init(comm, process_sets)
    if not (is_asked_for or _has_told) and session.rank() == 0:
        _has_told = True
        logger.warning(
            "hvdlite stands in for Horovod, which is not installed here; hvdrun does without this line with "
            "--horovod-compat, and without the name horovod with --no-horovod-compat"
        )


def shutdown() -> None:
    """As `hvdlite.shutdown`, for a session that `init` has begun."""
    if stands_for_horovod():
        session.shutdown()


def is_initialized() -> bool:
    """True if `init` was called, and this process is in a session."""
    return stands_for_horovod() and session.is_initialized()


def rank() -> int:
    """The number of this process in the job, from 0. Raises ValueError before `init`, as do the functions below."""
    _refuse_before_init()
    return session.rank()


def size() -> int:
    """The number of ranks of the job."""
    _refuse_before_init()
    return session.size()


def local_rank() -> int:
    """The number of this process among those on its host."""
    _refuse_before_init()
    return session.local_rank()


def local_size() -> int:
    """The number of ranks on this host."""
    _refuse_before_init()
    return session.local_size()


def cross_rank() -> int:
    """The index of this host among the hosts that have this local rank."""
    _refuse_before_init()
    return session.cross_rank()


def cross_size() -> int:
    """The number of hosts that have this local rank."""
    _refuse_before_init()
    return session.cross_size()


def is_homogeneous() -> bool:
    """True if every host has the same number of ranks."""
    _refuse_before_init()
    return session.is_homogeneous()


def _refuse_before_init() -> None:
    if not stands_for_horovod():
        raise ValueError("Horovod has not been initialized; call hvd.init() first")


_FUNCTIONS: Final = (
    init,
    shutdown,
    is_initialized,
    rank,
    size,
    local_rank,
    local_size,
    cross_rank,
    cross_size,
    is_homogeneous,
)


class _NamedBasics(HorovodBasics):
    """`HorovodBasics` with the functions of this module."""


for _function in _FUNCTIONS:
    setattr(_NamedBasics, _function.__name__, staticmethod(_function))
_NamedBasics.__name__ = _NamedBasics.__qualname__ = HorovodBasics.__name__

_OWN: Final[dict[int, Any]] = {
    id(HorovodBasics): _NamedBasics,
    **{id(getattr(session, function.__name__)): function for function in _FUNCTIONS},
}


def fill(module: ModuleType, lent: ModuleType) -> bool:
    """Makes ``module`` like ``lent``, but for the names that this module has. Returns False if there are none."""
    names = vars(lent)
    if not any(id(value) in _OWN for value in names.values()):
        return False
    for name, value in names.items():
        if name not in _OF_A_MODULE and f"{module.__name__}.{name}" not in MODULES:
            own = _NamedBasics() if isinstance(value, HorovodBasics) else _OWN.get(id(value), value)
            setattr(module, name, own)

    def find(name: str) -> Any:
        if (below := f"{module.__name__}.{name}") in MODULES:
            return importlib.import_module(below)
        if name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return getattr(lent, name)

    module.__getattr__ = find  # type: ignore[method-assign]
    return True

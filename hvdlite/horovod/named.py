"""Horovod's modules where every program can import ``horovod``: hvdlite's, with another ``init`` and related functions.

A program that only checks for Horovod must not change by finding it. So under Horovod's name nothing is initialized
before the program has called ``init`` under that name, whatever it has called under hvdlite's. That call turns on
Horovod's behaviours.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final, TypeVar

from hvdlite import session
from hvdlite.compat import standing_by_name, stands_for_horovod
from hvdlite.compat.names import MODULES
from hvdlite.horovod.basics import HorovodBasics
from hvdlite.log import logger
from hvdlite.members.process_set import ProcessSet

T = TypeVar("T")

_OF_A_MODULE: Final = frozenset(
    "__name__ __loader__ __spec__ __package__ __path__ __builtins__ __cached__ __getattr__".split()
)
_has_warned = False


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """As `hvdlite.init`. From now on hvdlite stands in for Horovod in this process; rank 0 logs that once."""
    global _has_warned
    is_asked_for = stands_for_horovod()
    with standing_by_name():
        session.init(comm, process_sets)
    if not (is_asked_for or _has_warned) and session.rank() == 0:
        _has_warned = True
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


def _after_init(ask: Callable[[], T]) -> Callable[[], T]:
    """Returns ``ask``, which raises ValueError before `init`."""

    @functools.wraps(ask)
    def call() -> T:
        if not stands_for_horovod():
            raise ValueError("Horovod has not been initialized; call hvd.init() first")
        return ask()

    return call


_AFTER_INIT: Final = "rank size local_rank local_size cross_rank cross_size is_homogeneous".split()
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "init": init,
    "shutdown": shutdown,
    "is_initialized": is_initialized,
    **{name: _after_init(getattr(session, name)) for name in _AFTER_INIT},
}


class _NamedBasics(HorovodBasics):
    """`HorovodBasics` with the functions of this module."""


for _name, _function in _FUNCTIONS.items():
    setattr(_NamedBasics, _name, staticmethod(_function))
_NamedBasics.__name__ = _NamedBasics.__qualname__ = HorovodBasics.__name__

_OWN: Final[dict[int, Any]] = {
    id(HorovodBasics): _NamedBasics,
    **{id(getattr(session, name)): function for name, function in _FUNCTIONS.items()},
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

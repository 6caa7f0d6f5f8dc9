"""The public face of a front end."""

from __future__ import annotations

import sys
from types import ModuleType


def publish(module: str) -> None:
    """Makes ``*`` import, and `dir` show, the names in ``module`` that are neither private nor modules."""
    loaded = sys.modules[module]
    names = [
        name for name, value in vars(loaded).items() if not (name.startswith("_") or isinstance(value, ModuleType))
    ]
    loaded.__all__ = sorted([*names, "__version__"])  # type: ignore[attr-defined]
    loaded.__dir__ = lambda: loaded.__all__  # type: ignore[method-assign]

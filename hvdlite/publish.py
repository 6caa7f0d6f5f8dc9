"""The public face of a front end."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


def public(module: str) -> dict[str, Any]:
    """The names in ``module`` that are neither private nor modules, with its version."""
    loaded = importlib.import_module(module)
    return {
        name: value
        for name, value in vars(loaded).items()
        if name == "__version__" or not (name.startswith("_") or isinstance(value, ModuleType))
    }


def publish(module: str) -> None:
    """Makes ``*`` import, and `dir` show, the `public` names of ``module``."""
    loaded = sys.modules[module]
    loaded.__all__ = sorted(public(module))  # type: ignore[attr-defined]
    loaded.__dir__ = lambda: loaded.__all__  # type: ignore[method-assign]

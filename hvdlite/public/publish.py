"""The public face of a front end."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
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


def publish(module: str, later: Iterable[str] = ()) -> None:
    """Makes ``*`` import, and `dir` show, the `public` names of ``module`` and the names that it imports ``later``."""
    loaded = sys.modules[module]
    loaded.__all__ = sorted([*public(module), *later])  # type: ignore[attr-defined]
    loaded.__dir__ = lambda: loaded.__all__  # type: ignore[method-assign]

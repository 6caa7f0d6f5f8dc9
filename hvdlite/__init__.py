"""Data-parallel training on CPUs, started with ``hvdrun -np N python train.py``.

``import hvdlite as hvd`` has the collectives for numpy arrays and needs no framework; ``hvdlite.torch`` has them for
PyTorch, with the training helpers.

The public names are listed in ``__init__.pyi`` and `hvdlite.public_names`. All of them are imported when the first is
used, so hvdrun, which is part of this package, starts without numpy and the engine.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from hvdlite.tracebacks import install as _install

_install()  # before slow imports, which Ctrl-C may interrupt


@functools.cache
def _modules() -> dict[str, str]:
    """The module of each public name."""
    import ast
    import pkgutil

    found = {}
    for file in ("public_names.py", "__init__.pyi"):
        listed = ast.parse(pkgutil.get_data(__name__, file) or b"")
        statements = [node for node in listed.body if isinstance(node, ast.ImportFrom)]
        found.update({alias.name: str(node.module) for node in statements for alias in node.names})
    del found["*"]
    return found


def __getattr__(name: str) -> Any:
    modules = _modules()
    if name != "__all__" and name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public = {each: getattr(importlib.import_module(module), each) for each, module in modules.items()}
    globals().update(public, __all__=sorted(public))
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(_modules())

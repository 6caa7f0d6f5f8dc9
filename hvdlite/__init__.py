"""Data-parallel training that anyone starts with ``hvdrun -np N python train.py``.

``import hvdlite as hvd`` gives the collectives for numpy arrays and needs no framework; ``hvdlite.torch`` is the same
for PyTorch, with the training helpers.

The public names are listed in ``__init__.pyi`` and `hvdlite.public_names`, and imported all together when the first of
them is used: hvdrun, which is a part of this package, starts without numpy and the engine.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from hvdlite.tracebacks import install as _install

_install()  # before what takes its time to import: Ctrl-C may come meanwhile


@functools.cache
def _modules() -> dict[str, str]:
    """The module that each public name is from."""
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

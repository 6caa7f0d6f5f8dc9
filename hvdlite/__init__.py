"""Data-parallel training on CPUs, started with ``hvdrun -np N python train.py``.

``import hvdlite as hvd`` has the collectives for numpy arrays and needs no framework; ``hvdlite.torch`` has them for
PyTorch, with the training helpers.

The public names are those of `hvdlite.public.numpy_api`. All of them are imported when the first is used, so hvdrun,
which is part of this package, starts without numpy and the engine.
"""

from __future__ import annotations

import importlib
import importlib.machinery
from typing import TYPE_CHECKING, Any

from hvdlite.tracebacks import install as _install

_ONLY_IN_TORCH = (
    "Compression Compressor DistributedOptimizer SyncBatchNorm broadcast_optimizer_state broadcast_parameters "
    "convert_sync_batchnorm sparse_allreduce_async"
)

if TYPE_CHECKING:
    from hvdlite.public.numpy_api import *  # noqa: F403

_install()  # before slow imports, which Ctrl-C may interrupt


def _public() -> dict[str, Any]:
    names: dict[str, Any] = importlib.import_module("hvdlite.public.publish").public(f"{__name__}.public.numpy_api")
    for name, value in names.items():
        globals().setdefault(name, value)  # the user may have assigned to it
    return names


def __getattr__(name: str) -> Any:
    is_submodule = importlib.machinery.PathFinder.find_spec(f"{__name__}.{name}", __path__) is not None  # noqa: F405
    if not is_submodule and (name in ("__all__", "__version__") or not name.startswith("__")):
        names = _public()
        if name in names:
            return names[name]
        if name == "elastic":  # not public, and in all front ends
            return importlib.import_module(f"{__name__}.public.elastic")
        if name == "__all__":
            return sorted(names)
    hint = "; hvdlite.torch has it" if name in _ONLY_IN_TORCH.split() else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted(_public())

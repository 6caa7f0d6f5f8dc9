"""Lends Horovod's names to hvdlite's modules, so that both names yield the same module object."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from hvdlite.compat.names import MODULES

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:  # importing it takes a twentieth of the time of `import hvdlite`
    Loader = MetaPathFinder = object

_ROOT: Final = "horovod"
_NAMED: Final = "hvdlite.horovod.named"


class HorovodFinder(MetaPathFinder):
    """Finds ``horovod`` in ``folder``, and its submodules by name alone.

    Without a folder it leaves ``horovod`` to others, and `hvdlite.horovod.named` makes a separate module of each one
    with an ``init``. Modules that are not Horovod's are then searched in the package's own path.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of one of Horovod's modules, None for other names. Raises ModuleNotFoundError for missing modules.

        With None for those too, Python would search the folders of hvdlite's modules.
        """
        if fullname == _ROOT:
            return PathFinder.find_spec(fullname, [self._folder]) if self._folder else None
        if not fullname.startswith(f"{_ROOT}."):
            return None
        if fullname not in MODULES:
            if self._folder is None and (spec := PathFinder.find_spec(fullname, path)):
                return spec
            # Without its argument ``name``: by that, ``from horovod import tensorflow`` would take the message away.
            parent = fullname.rpartition(".")[0]
            while parent not in MODULES and parent != _ROOT:
                parent = parent.rpartition(".")[0]
            there = sorted(name.rpartition(".")[2] for name in MODULES if name.rpartition(".")[0] == parent)
            raise ModuleNotFoundError(
                f"no module {fullname!r}: hvdlite stands in for Horovod here, and has "
                f"{', '.join(there) if there else 'no module'} in {parent}"
            )
        lent = MODULES[fullname]
        is_package = any(name.startswith(f"{fullname}.") for name in MODULES)
        spec = find_spec(lent) if lent else None
        loader = _Lender(lent, self._folder is None)
        return ModuleSpec(fullname, loader, origin=spec.origin if spec else None, is_package=is_package)


class _Lender(Loader):
    """Loads the module ``lent`` in place of the requested one, or an empty package if there is none.

    A module that ``is_named`` is not ``lent`` itself, but one like it, if its ``init`` must be another.
    """

    def __init__(self, lent: str, is_named: bool) -> None:
        self._lent = lent
        self._is_named = is_named

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def get_code(self, fullname: str) -> CodeType | None:
        """The code of the lent module, for ``python -m``."""
        spec = find_spec(self._lent)
        assert spec is not None
        loader: Any = spec.loader  # of sources, which has the method
        code: CodeType | None = loader.get_code(self._lent)
        return code

    def exec_module(self, module: ModuleType) -> None:
        if not self._lent:
            return
        lent = importlib.import_module(self._lent)
        if self._is_named and importlib.import_module(_NAMED).fill(module, lent):
            return
        # ``from horovod.torch import mpi_ops`` asks the lent module, which by itself has no such name.
        for name, below in MODULES.items():
            parent, _, tail = name.rpartition(".")
            if parent == module.__name__ and not hasattr(lent, tail):
                setattr(lent, tail, importlib.import_module(below))
        # The import system returns what it finds here when this method is over.
        sys.modules[module.__name__] = lent

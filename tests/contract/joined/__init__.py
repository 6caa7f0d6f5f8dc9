"""The planes under test: one file each, which defines ``PLANE``. A new file joins by being here."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tests.contract.planes import PlaneUnderTest

PLANES: list[PlaneUnderTest] = [
    import_module(f"{__name__}.{module.name}").PLANE for module in pkgutil.iter_modules(__path__)
]

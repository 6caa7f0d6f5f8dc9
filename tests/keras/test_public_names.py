"""The public names of the front ends that need packages of their own; see tests/house/test_public_api.py."""

from __future__ import annotations

import importlib

import pytest

from tests.house.test_public_api import COMMON

IN_PLACE = {name for name in COMMON if name.endswith(("_", "_async_")) and not name.startswith("_")}
NAMES = {
    "hvdlite.jax": (set(COMMON) - IN_PLACE - {"shared_empty"})
    | {"Compression", "Compressor", "broadcast_parameters", "last_error"},
}


@pytest.mark.parametrize("module", NAMES)
def test_the_public_list_is_what_was_promised(module: str) -> None:
    loaded = importlib.import_module(module)
    assert sorted(loaded.__all__) == sorted(NAMES[module] | {"__version__"})
    bare = [name for name in loaded.__all__ if callable(getattr(loaded, name)) and not getattr(loaded, name).__doc__]
    assert bare == []

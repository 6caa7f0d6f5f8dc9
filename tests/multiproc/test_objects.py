"""Python objects from one rank and from all, for users of numpy: by name where that is possible, or else by value."""

from __future__ import annotations

import builtins
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import process_ranks

RANKS = (1, 2, 3)


class Point:
    """A class that every rank can import."""

    def __init__(self, x: int) -> None:
        self.x = x


def _objects() -> None:
    hvd.init()
    everybody = range(hvd.size())
    for root in everybody:
        own = {"rank": hvd.rank(), "array": np.arange(3) + hvd.rank()}
        received = hvd.broadcast_object(own, root, name=f"object {root}")
        assert (received is own) == (root == hvd.rank())
        assert received["rank"] == root
        np.testing.assert_array_equal(received["array"], np.arange(3) + root)
    assert hvd.allgather_object({"payload": b"x" * 1000 * hvd.rank()}, name="all") == [
        {"payload": b"x" * 1000 * rank} for rank in everybody
    ]
    assert all(type(point) is Point for point in hvd.allgather_object(Point(hvd.rank())))
    hvd.shutdown()


class _Somewhere:
    """Defined on one rank only."""


def _without_a_name() -> None:
    hvd.init()
    if hvd.rank() == 0:
        hvd.broadcast_object(_Somewhere(), 0)
    else:
        del globals()["_Somewhere"]
        with pytest.raises(ValueError, match="Can't get attribute '_Somewhere' .* code that only some processes run"):
            hvd.broadcast_object(None, 0)
    number = hvd.rank() + 3
    last = hvd.size() - 1
    add = hvd.broadcast_object(lambda value: value + number, last)
    assert add(1) == last + 4
    functions = hvd.allgather_object(lambda: number)
    assert [function() for function in functions] == [rank + 3 for rank in range(hvd.size())]
    hvd.shutdown()


def _without_cloudpickle() -> None:
    """Everywhere, and then only where the object arrives."""
    hvd.init()
    last = hvd.size() - 1
    is_root = hvd.rank() == last
    loaded = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "cloudpickle"}
    _hide(loaded)
    if is_root:
        with pytest.raises(ValueError, match="<lambda>.* or install cloudpickle"):
            hvd.broadcast_object(lambda: 1, last)
    else:
        with pytest.raises(hvd.HorovodInternalError, match=f"rank {last} could not pickle its object"):
            hvd.broadcast_object(None, last)
    if is_root:
        _show(loaded)
        assert hvd.broadcast_object(lambda: 1, last)() == 1
    else:
        with pytest.raises(hvd.HorovodInternalError, match="needs the package cloudpickle on every rank"):
            hvd.broadcast_object(None, last)
    assert hvd.broadcast_object([hvd.rank()], 0) == [0]
    hvd.shutdown()


_find: Any = builtins.__import__


def _hide(loaded: dict[str, ModuleType]) -> None:
    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "cloudpickle":
            raise ModuleNotFoundError(f"No module named {name!r}", name="cloudpickle")
        return _find(name, *arguments, **options)

    for name in loaded:
        del sys.modules[name]
    builtins.__import__ = refuse


def _show(loaded: dict[str, ModuleType]) -> None:
    builtins.__import__ = _find
    sys.modules.update(loaded)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("work", [_objects, _without_a_name, _without_cloudpickle], ids=lambda work: work.__name__[1:])
def test_objects(ranks: int, work: Any) -> None:
    pytest.importorskip("cloudpickle", reason="needs cloudpickle")
    for outcome in process_ranks(ranks, work):
        outcome.result()

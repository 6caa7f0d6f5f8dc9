"""Pickles objects without an importable name, such as lambdas, by value; explains errors of unpickling by name."""

from __future__ import annotations

import pickle
from typing import Any, Final

UNPICKLABLE: Final = (pickle.PicklingError, AttributeError, TypeError)
"""The errors of `pickle` for an object that cannot be pickled by name."""


def dump_by_value(value: Any, reason: str) -> bytes:
    """Pickles ``value`` with cloudpickle. ``reason`` is the error of pickling it by name.

    Raises ValueError if cloudpickle is not installed, or fails too.
    """
    try:
        import cloudpickle
    except ModuleNotFoundError:
        raise ValueError(
            f"cannot be sent to another process: {reason}. "
            "Define it at the top level of a module or script, or install cloudpickle"
        ) from None
    try:
        return bytes(cloudpickle.dumps(value))
    except UNPICKLABLE as error:
        raise ValueError(f"cannot be sent to another process: {error}") from None


def loads(data: bytes | memoryview) -> Any:
    """Unpickles ``data``. Raises ValueError, with advice, for a name that this process has not defined."""
    try:
        return pickle.loads(data)
    except AttributeError as error:
        if not str(error).startswith("Can't get attribute"):
            raise  # from a method of the object
        raise ValueError(
            f"{error}: it was sent by its name, which this process has not defined. Define it at the top level of a "
            'module or script, not under if __name__ == "__main__": nor in other code that only some processes run'
        ) from None

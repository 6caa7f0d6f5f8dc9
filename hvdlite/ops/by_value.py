"""Pickling by value, with the package cloudpickle, for objects without an importable name, such as lambdas."""

from __future__ import annotations

import pickle
from typing import Any, Final

UNPICKLABLE: Final = (pickle.PicklingError, AttributeError, TypeError)
"""The errors of `pickle` for an object that cannot be pickled by name."""


def dump_by_value(value: Any, reason: str) -> bytes:
    """Pickles ``value``, which could not be pickled by name for ``reason``.

    Raises ValueError, which names the object and says what to do.
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

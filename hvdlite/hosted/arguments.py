"""Arguments of `hvdlite.spark.run` and `hvdlite.dask.run`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def call_arguments(
    args: Iterable[Any] | None, kwargs: Mapping[str, Any] | None, num_proc: int | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Checks what callers of `run` may pass, the same for every engine; returns the arguments of the function.

    Raises ValueError. A string as ``args`` is refused: it is one argument, not a list of its letters.
    """
    if args is not None and (isinstance(args, str | bytes) or not isinstance(args, Iterable)):
        raise ValueError(
            f"args must be a list or tuple of the function's arguments, got {type(args).__name__}; one is (argument,)"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ValueError(f"kwargs must be a dict of the function's named arguments, got {type(kwargs).__name__}")
    if num_proc is not None and (isinstance(num_proc, bool) or not isinstance(num_proc, int) or num_proc < 1):
        raise ValueError(f"num_proc must be the number of ranks, at least 1; got {num_proc!r}")
    return tuple(args or ()), dict(kwargs or {})

"""What callers of `run` may pass, the same for every engine: each function raises ValueError for anything else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def call_arguments(
    args: Iterable[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the function that the ranks call. A string is one argument, not a list of its letters."""
    if args is not None and (isinstance(args, str | bytes) or not isinstance(args, Iterable)):
        raise ValueError(
            f"args must be a list or tuple of the function's arguments, got {type(args).__name__}; one is (argument,)"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ValueError(f"kwargs must be a dict of the function's named arguments, got {type(kwargs).__name__}")
    return () if args is None else tuple(args), {} if kwargs is None else dict(kwargs)


def check_num_proc(num_proc: int | None) -> None:
    """Raises ValueError unless it is a number of ranks, or None."""
    if num_proc is not None and (isinstance(num_proc, bool) or not isinstance(num_proc, int) or num_proc < 1):
        raise ValueError(f"num_proc must be the number of ranks, at least 1; got {num_proc!r}")

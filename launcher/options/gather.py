"""Passes options of one subject to a command's function as one object."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def gathered(name: str, kind: type[Any], options: Sequence[Decorator]) -> Decorator:
    """Adds ``options`` to a command; its function gets them in the NamedTuple ``kind``, as the argument ``name``."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **values: Any) -> Any:
            values[name] = kind(**{field: values.pop(field) for field in kind._fields})
            return function(*arguments, **values)

        command: Callable[..., Any] = call
        for option in reversed(options):
            command = option(command)
        return command

    return add

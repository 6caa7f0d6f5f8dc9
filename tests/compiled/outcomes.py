"""What a function made, as text that two runs of it can be compared by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def outcome(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> str:
    """Runs ``function`` and returns its outcome as text that compares to the last bit."""
    try:
        return shown(function(x.clone()))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{value.tolist()}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    return repr(value)

"""Hides the native library from this process, as where it was never built."""

from __future__ import annotations

from pathlib import Path

from hvdlite import native


def hide_native(*, abi: int | None = None) -> None:
    """From now on the library cannot be loaded, or if ``abi`` is given is one of another version."""
    if abi is None:
        native.LIBRARY = Path("/nowhere/libhvdlite.so")  # type: ignore[misc]
    else:
        native.ABI_VERSION = abi  # type: ignore[misc]
    native.library.cache_clear()
    native.absence.cache_clear()

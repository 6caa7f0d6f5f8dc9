"""Hides the native library from this process, as if it had never been built."""

from __future__ import annotations

from pathlib import Path

from hvdlite import native


def hide_native(*, abi: int | None = None) -> None:
    """From now on the library cannot be loaded, or has the version ``abi`` if that is given."""
    if abi is None:
        native.LIBRARY = Path("/nowhere/libhvdlite.so")  # type: ignore[misc]
    else:
        native.ABI_VERSION = abi  # type: ignore[misc]
    native.library.cache_clear()
    native.absence.cache_clear()

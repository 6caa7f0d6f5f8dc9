"""Finds the ranks that run on workers of a Dask cluster of this process."""

from __future__ import annotations

import psutil


def ranks() -> list[psutil.Process]:
    """The processes of ranks and what they have started, of workers of this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE and "hvdlite.hosted.child" in " ".join(process.cmdline()):
                found += [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return found

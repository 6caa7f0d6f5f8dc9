"""Reports to hvdrun which rank caused the end of a session, or kept one from beginning.

So hvdrun does not blame a victim. It gives every rank a pipe. The rank writes a line before any call can raise the
error, and so before it can end because of it; whoever starts ranks reads the pipe when the process is over. A program
between the two may have closed the descriptor and opened another file in its place, so the pipe is known by its inode
too.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress

_MAX_FATE = 500  # characters: a line is written in one piece, and some thousand of them fit


def report(rank: int, fate: str, pipe: str) -> None:
    """Writes the ``rank`` to blame, and its ``fate``, to the ``pipe`` of `Settings.report`. Never blocks."""
    descriptor, _, inode = pipe.partition(":")
    with suppress(OSError, ValueError):  # nobody reads it: hvdrun then shows the rank that ended first
        found = os.fstat(int(descriptor))
        if stat.S_ISFIFO(found.st_mode) and found.st_ino == int(inode):
            os.write(int(descriptor), json.dumps([rank, fate[:_MAX_FATE]]).encode() + b"\n")

"""Reports to hvdrun which rank ended a session, or prevented one, so that hvdrun does not blame a victim.

hvdrun gives every rank a pipe. The rank writes a line before any call raises the error, and so before the process can
end because of it; hvdrun's agent reads the pipe when the process has ended. A program between the two may have closed
the descriptor and opened another file with its number, so the setting also contains the pipe's inode.
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
    with suppress(OSError, ValueError):  # without the report hvdrun shows the rank that ended first
        found = os.fstat(int(descriptor))
        if stat.S_ISFIFO(found.st_mode) and found.st_ino == int(inode):
            os.write(int(descriptor), json.dumps([rank, fate[:_MAX_FATE]]).encode() + b"\n")

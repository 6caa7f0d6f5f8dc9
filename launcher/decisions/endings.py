"""How hvdrun ends because of an exception: the same exit code and text here and on all other nodes of the job."""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

import click

from hvdlite.errors import LaunchError

_BAD_USAGE: Final = 2
_INTERRUPTED: Final = 130
NODE_LEFT: Final = "hvdrun there has ended without a word"
NODE_BROKE: Final = "the connection to its hvdrun broke"
"""The ways in which hvdrun of another node can be gone, in the reason of a failure."""


class Ending(NamedTuple):
    """The exit code, and what the user reads; empty if there is nothing to say."""

    code: int
    text: str = ""


def ending_of(error: BaseException) -> Ending:
    """The ending for ``error``."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return Ending(error.code)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return Ending(_INTERRUPTED)
    if isinstance(error, click.ClickException):
        return Ending(error.exit_code, error.format_message())
    if isinstance(error, LaunchError):
        return Ending(error.exit_code, str(error))
    if isinstance(error, ValueError):
        return Ending(_BAD_USAGE, str(error))
    if isinstance(error, OSError):
        if error.errno == errno.EMFILE:
            return Ending(1, f"{error.strerror}; raise the limit with ulimit -n.")
        return Ending(1, f"{error.strerror}: {error.filename}." if error.filename else f"{error}.")
    return Ending(1)

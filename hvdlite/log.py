"""Messages of the library: the standard ``logging`` under one name, prefixed with the rank."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

TRACE = 5
_LEVELS = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}

logger = logging.getLogger("hvdlite")
logger.addHandler(logging.NullHandler())


class _CurrentStderr(logging.StreamHandler[TextIO]):
    """Writes to whatever ``sys.stderr`` is at the time, as redirecting programs expect."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        pass


_handler = _CurrentStderr()


def configure(rank: int, level: str, hide_time: bool) -> None:
    """Prints messages of at least ``level`` to stderr with this rank's prefix. Repeated calls replace the setting."""
    stamp = "" if hide_time else "%(asctime)s "
    _handler.setFormatter(logging.Formatter(f"{stamp}hvdlite[{rank}] %(levelname)s: %(message)s"))
    if _handler not in logger.handlers:
        logger.addHandler(_handler)
    logger.setLevel(_LEVELS[level])
    logger.propagate = False

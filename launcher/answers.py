"""What an agent answers about its host: one row of the table and one function for each kind of question.

A function gets the fields of the question and returns what JSON can hold; an exception that says what was wrong with
the question or the host (OSError, ValueError, KeyError) becomes the answer's error. Each question is answered in a
thread of its own, so that one that takes seconds holds up nothing. All run on the standard library alone.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from .archive import Archive
from .interfaces import describe_network
from .machine import describe_machine
from .probe import Prober
from .software import examine

Fields = Mapping[str, Any]


def is_folder(question: Fields) -> bool:
    """Whether ``path`` is a folder that this user may enter."""
    path = Path(question["path"])
    return path.is_dir() and os.access(path, os.X_OK)


def free_port(question: Fields) -> int:
    """A TCP port that is free on ``address``."""
    address = question["address"]
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


ARCHIVE: Final = Archive()
_PROBER: Final = Prober()

ANSWERS: Final[Mapping[str, Callable[[Fields], Any]]] = {
    "is_folder": is_folder,
    "free_port": free_port,
    "unpack": ARCHIVE.unpack,
    "network": lambda question: describe_network(),
    "listen": _PROBER.listen,
    "dial": _PROBER.dial,
    "unlisten": _PROBER.close,
    "clock": lambda question: time.time(),
    "machine": lambda question: describe_machine(),
    "software": lambda question: examine(),
}


class Answerer:
    """Answers questions in the background. ``fileno`` is readable when there are answers to take."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._readable, self._written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._readable

    def begin(self, question: Fields) -> None:
        """Starts to answer ``{"id", "what", ...}``. Raises KeyError if it is no question."""
        number, what = question["id"], question["what"]
        threading.Thread(target=self._answer, args=(number, what, question), name=f"answer {what}", daemon=True).start()

    def finished(self) -> Iterator[dict[str, Any]]:
        """The fields of the answers that are ready."""
        os.read(self._readable, 4096)
        while not self._answers.empty():
            yield self._answers.get()

    def _answer(self, number: int, what: str, question: Fields) -> None:
        try:
            if what not in ANSWERS:
                raise ValueError(f"this agent knows no {what!r}")
            answer = {"id": number, "answer": ANSWERS[what](question)}
        except KeyError as error:
            answer = {"id": number, "error": f"the question {what!r} lacks {error}"}
        except (OSError, ValueError) as error:
            answer = {"id": number, "error": str(error)}
        self._answers.put(answer)
        os.write(self._written, b"\0")

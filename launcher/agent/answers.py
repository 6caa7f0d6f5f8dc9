"""An agent's answers to questions about its host: one row of the table and one function for each kind of question.

A function gets the question (`launcher.stream.questions`) and returns a JSON value; an exception about the host
(OSError, ValueError) becomes the answer's error. Each question is answered in a thread of its own, so that a slow one
delays nothing. Answers need only the standard library, and import what they need when they are first asked: an agent of
hvdrun's own host is asked next to nothing, and starts sooner.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..stream.fields import MOST_CHARACTERS
from ..stream.messages import Answer, Ask

if TYPE_CHECKING:
    from .archive import Archive
    from .network.probe import Prober


def free_ports(address: str, ports: tuple[int, int] | None, count: int) -> list[int]:
    """Up to ``count`` TCP ports that are free on ``address``; the last of ``ports`` (first and last, None: any).

    Raises OSError if there is none.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    found: list[int] = []
    with ExitStack() as held:  # until all are found, so that none is found twice
        for port in range(ports[1], ports[0] - 1, -1) if ports else repeat(0, count):
            if len(found) == count:
                break
            probe = socket.socket(family)
            try:
                probe.bind((address, port))
            except OSError:
                probe.close()
            else:
                found.append(int(held.enter_context(probe).getsockname()[1]))
    if not found:
        raise OSError(f"no port of {address} is free{f' from {ports[0]} to {ports[1]}' if ports else ''}")
    return found


def free_port(address: str) -> int:
    """A TCP port that is free on ``address``."""
    return free_ports(address, None, 1)[0]


def take_files(piece: bytes) -> None:
    """Takes the next bytes of an archive that is to be unpacked."""
    _archive().write(piece)


@cache
def _archive() -> Archive:
    from .archive import Archive

    return Archive()


@cache
def _prober() -> Prober:
    from .network.probe import Prober

    return Prober()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and os.access(path, os.X_OK)


def _network() -> dict[str, Any]:
    from .network.interfaces import describe_network

    return describe_network()


def _machine() -> dict[str, Any]:
    from hvdlite.host.machine import describe_machine

    return describe_machine()


def _software() -> dict[str, Any]:
    from .software import examine

    return examine()


ANSWERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "IsFolder": lambda question: _is_folder(Path(*question)),
    "IsThere": lambda question: Path(*question).exists(),
    "FreePorts": lambda question: free_ports(*question),
    "Unpack": lambda question: _archive().unpack(*question),
    "Network": lambda _: _network(),
    "Listen": lambda question: _prober().listen(question),
    "Dial": lambda question: _prober().dial(question),
    "Unlisten": lambda _: _prober().close(),
    "Clock": lambda _: time.time(),
    "Machine": lambda _: _machine(),
    "Software": lambda _: _software(),
}


class Answerer:
    """Answers questions in the background. ``fileno`` is readable when there are answers to take.

    ``more`` has the rows of those about the workers.
    """

    def __init__(self, more: Mapping[str, Callable[[Any], Any]]) -> None:
        self._table = {**ANSWERS, **more}
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._readable, self._written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._readable

    def begin(self, question: Ask, prepared: Callable[[], Any] | None = None) -> None:
        """Starts to answer ``question``, by ``prepared`` or the table."""
        arguments, name = (question, prepared), f"answer {question.what:.40}"
        threading.Thread(target=self._answer, args=arguments, name=name, daemon=True).start()

    def finished(self) -> Iterator[Answer]:
        """The answers that are ready."""
        os.read(self._readable, 4096)
        while not self._answers.empty():
            yield self._answers.get()

    def _answer(self, question: Ask, prepared: Callable[[], Any] | None) -> None:
        answer, error = None, ""
        try:
            answer = prepared() if prepared else self._table[question.what](question.question)
        except (OSError, ValueError) as problem:
            error = str(problem) or repr(problem)
        except Exception as failure:  # each question is answered, or hvdrun waits
            error = f"the agent failed: {failure!r:.200}"
        self._answers.put(Answer(question.id, answer, error[:MOST_CHARACTERS]))
        os.write(self._written, b"\0")

"""Finds the running jobs of this user, and asks their hvdruns."""

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, NamedTuple, Self

from hvdlite.net.listener import peer_of
from hvdlite.net.untrusted import parse

from ..stream.fields import Count, Figure, each, exactly, integer, line, mapping, read, short
from . import folder

_PATIENCE_S: Final = 30.0  # beyond that of hvdrun with its agents
_MOST_BYTES: Final = 64 << 20  # of a line, as of a frame between hvdrun and an agent
_READ_BYTES: Final = 1 << 20


class JobEnded(Exception):
    """The job has ended, with the exit code ``code`` if hvdrun could say it. The text says so."""

    def __init__(self, code: int | None) -> None:
        super().__init__("the job has ended" + ("" if code is None else f" with exit code {code}"))
        self.code = code


_MOST: Final = 1 << 20  # ranks, words
_ranks: Final = each(integer(0, _MOST), _MOST)


class Job(NamedTuple):
    """A job, as its hvdrun describes it. ``logs`` is the folder of --output-filename, empty without.

    ``alive`` are the ranks that run, and ``found`` is what was found out about the job ``found_ago_s`` ago.
    """

    pid: Count
    command: Annotated[tuple[str, ...], each(short, _MOST)]
    logs: Annotated[str, exactly(str)]
    size: Count
    ran_s: Figure
    alive: Annotated[tuple[int, ...], _ranks]
    hosts: Annotated[Mapping[str, tuple[int, ...]], mapping(_ranks)]
    found: Annotated[str, line(_MOST)]
    found_ago_s: Figure


class Client:
    """A connection to the hvdrun of process ``pid``. Raises OSError if there is none.

    Its methods raise JobEnded, and TimeoutError if it is stopped.
    """

    def __init__(self, pid: int, place: int, name: str) -> None:
        self.pid = pid
        self._sock = socket.socket(socket.AF_UNIX)
        self._received = b""
        try:
            self._sock.settimeout(_PATIENCE_S)
            self._sock.connect(folder.address(place, name))
            if not peer_of(self._sock).is_own:
                raise PermissionError(f"process {pid} is another user's")
        except BaseException:
            self._sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._sock.close()

    def job(self) -> Job:
        """What hvdrun says of the job. Raises ValueError if that is no job."""
        if not (lines := self.ask("job")):
            raise JobEnded(None)
        return read(Job, lines[0].get("answer"))

    def ask(self, what: str, **fields: Any) -> list[Mapping[str, Any]]:
        """Asks one question, and returns the lines of its answer: see `monitor`."""
        lines: list[Mapping[str, Any]] = []
        with suppress(OSError):  # it may have sent the code before it hung up
            self._sock.sendall(json.dumps({"what": what, **fields}).encode() + b"\n")
        while not (line := self._line()).get("done"):
            if "ended" in line:
                raise JobEnded(line["ended"] if type(line["ended"]) is int else None)
            lines.append(line)
        return lines

    def _line(self) -> Mapping[str, Any]:
        pieces = [self._received]
        while b"\n" not in pieces[-1]:
            try:
                piece = self._sock.recv(_READ_BYTES)
            except TimeoutError:
                raise TimeoutError(f"hvdrun, process {self.pid}, does not answer") from None
            except OSError:
                piece = b""
            if not piece or sum(map(len, pieces)) > _MOST_BYTES:
                raise JobEnded(None)
            pieces.append(piece)
        text, _, self._received = b"".join(pieces).partition(b"\n")
        with suppress(ValueError):
            line = parse(text)
            if isinstance(line, dict):
                return line
        raise JobEnded(None)


def running(environ: Mapping[str, str] = os.environ) -> list[Client]:
    """Connects to all running hvdruns of this user, in the order of their process ids; the caller closes them."""
    found: dict[int, Client] = {}
    for place in folder.existing(environ):
        for pid, name in folder.sockets(place).items():
            with suppress(OSError):
                found[pid] = Client(pid, place, name)
        os.close(place)
    return [found[pid] for pid in sorted(found)]

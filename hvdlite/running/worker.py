"""One rank of `hvdlite.run`: fetches the function, calls it, and delivers what came of it.

It speaks first: ``FETCH`` is answered with the preparation and the call; ``RESULT`` or ``FAILURE`` is answered with an
empty frame, and only then does the process end. A failure is printed as well, like that of any program.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any, Final

import zmq

from hvdlite.errors import LaunchError
from hvdlite.rendezvous.job import Job
from hvdlite.running.functions import MAX_BYTES, dump, load, prepare
from hvdlite.settings import Settings

FETCH: Final = b"fetch"
RESULT: Final = b"result"
FAILURE: Final = b"failure"
JOB: Final = "hvdlite.run"


class CallerLink:
    """A worker's connection to the program that called `hvdlite.run`."""

    def __init__(self, context: zmq.Context[Any], settings: Settings) -> None:
        if not (settings.run_address and settings.run_secret):
            raise ValueError("hvdlite.running.worker is started by hvdlite.run() and by nothing else")
        self._rank = settings.rank
        self._socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
        Job(JOB, settings.run_secret).dial(self._socket)
        self._socket.connect(settings.run_address)

    def ask(self, kind: bytes, body: bytes, timeout_s: float) -> list[bytes]:
        """Sends a message and returns the answer. Raises LaunchError if none comes in time."""
        self._socket.send_multipart([kind, b"%d" % self._rank, body], copy=False)
        if not self._socket.poll(int(timeout_s * 1000)):
            raise LaunchError(f"rank {self._rank} got no answer in {timeout_s:.0f} s from the caller of hvdlite.run()")
        return self._socket.recv_multipart()

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


def main() -> int:
    """Serves one call; returns the exit code of the process."""
    settings = Settings.read()
    with zmq.Context() as context:
        link = CallerLink(context, settings)
        try:
            told, call = link.ask(FETCH, b"", settings.start_timeout)
            kind, outcome = _call(json.loads(told), call, settings.rank)
            link.ask(kind, outcome, settings.progress_timeout)
        finally:
            link.close()
    return 0 if kind == RESULT else 1


def _call(told: dict[str, Any], call: bytes, rank: int) -> tuple[bytes, bytes]:
    try:
        prepare(told)
        func, args, kwargs = load(call)
        result = func(*args, **kwargs)
    except Exception as error:  # whatever it is, it is the caller's to see
        error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        return FAILURE, _print("".join(traceback.format_exception(error)))
    try:
        return RESULT, dump(result)
    except ValueError as error:
        return FAILURE, _print(f"the result of rank {rank}, a {type(result).__name__}, {error}\n")


def _print(text: str) -> bytes:
    print(text, end="", file=sys.stderr, flush=True)
    return text.encode(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())

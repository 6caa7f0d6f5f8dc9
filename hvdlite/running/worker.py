"""One rank of `hvdlite.run`: fetches the function, calls it, and delivers its result.

It sends the caller two requests. The answer to ``FETCH`` is a line of JSON, the preparation, and a pickle, the call.
The answer to ``RESULT`` or ``FAILURE`` is empty, and the process ends. A failure is also printed.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any, Final

from hvdlite.errors import LaunchError
from hvdlite.net.calls import Unanswered, ask
from hvdlite.rendezvous.job import Job
from hvdlite.running.functions import MAX_BYTES, dump, load, prepare
from hvdlite.scope import Scope
from hvdlite.settings import Settings, Start
from hvdlite.tracebacks import shorten

FETCH: Final = b"fetch"
RESULT: Final = b"result"
FAILURE: Final = b"failure"
DELIVERED: Final = 113  # the exit code of a rank whose failure the caller knows
JOB: Final = "hvdlite.run"


def main() -> int:
    """Serves one call; returns the exit code of the process."""
    start, settings = Start.read(), Settings.read()
    if not (start.run_address and start.run_secret):
        raise ValueError("hvdlite.running.worker is started by hvdlite.run() and by nothing else")
    prepared, call = split(_ask(start, FETCH, b"", settings.start_timeout))
    kind, outcome = _call(json.loads(prepared), call, start.rank)
    _ask(start, kind, outcome, settings.progress_timeout)
    return 0 if kind == RESULT else DELIVERED


def split(message: bytearray) -> tuple[bytes, memoryview]:
    """The first line of a message, and a view of the rest."""
    end = message.find(b"\n") + 1 or len(message)
    return bytes(message[:end]), memoryview(message)[end:]


def _ask(start: Start, kind: bytes, body: bytes, timeout_s: float) -> bytearray:
    """Returns the caller's answer. Raises LaunchError if none comes in time."""
    secret = Job(JOB, start.run_secret).key("run")
    head = b"%s %d\n" % (kind, start.rank)
    try:
        return ask(start.run_address, secret, head, body, most=MAX_BYTES, scope=Scope.of(timeout_s))
    except Unanswered as error:
        raise LaunchError(f"rank {start.rank} got no answer from the caller of hvdlite.run(): {error}") from None


def _call(prepared: dict[str, Any], call: memoryview, rank: int) -> tuple[bytes, bytes]:
    try:
        prepare(prepared)
        func, args, kwargs = load(call)
        result = func(*args, **kwargs)
    except Exception as error:  # every exception belongs to the caller
        error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        shorten(error)
        return FAILURE, _keep("".join(traceback.format_exception(error)), prepared)
    try:
        return RESULT, dump(result)
    except ValueError as error:
        return FAILURE, _keep(f"the result of rank {rank}, a {type(result).__name__}, {error}\n", prepared)


def _keep(text: str, prepared: dict[str, Any]) -> bytes:
    """Returns ``text`` for the caller, and writes it to the rank's own files if there are any."""
    if prepared["has_files"]:
        print(text, end="", file=sys.stderr, flush=True)
    return text.encode(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())

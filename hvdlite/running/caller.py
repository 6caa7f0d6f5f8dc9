"""The caller's side of `hvdlite.run`: one loop that answers the workers and waits for the end of hvdrun."""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, NoReturn

from hvdlite.errors import BadHostSpec, FunctionFailed, LaunchError, WorkerFailed
from hvdlite.launched_by.inherited import without_job
from hvdlite.members.ranges import shortened
from hvdlite.net.calls import Query, QueryServer
from hvdlite.net.listener import Listener
from hvdlite.net.sockets import name_of
from hvdlite.rendezvous.job import Job
from hvdlite.running.functions import MAX_BYTES, dump, load, preparation
from hvdlite.running.worker import FAILURE, FETCH, JOB, RESULT, split

_READ_BYTES: Final = 64 << 10
_END_S: Final = 15.0  # for hvdrun to end its ranks: longer than hvdrun waits before SIGKILL


class Call:
    """One call of a function on ``size`` ranks. ``words`` are options of hvdrun."""

    def __init__(self, call: Any, size: int, words: Sequence[str], environment: Mapping[str, str]) -> None:
        try:
            self._call = dump(call)
        except ValueError as error:
            raise ValueError(f"the function or its arguments {error}") from error
        prepared = {**preparation(self._call), "has_files": "--output-filename" in words}
        self._preparation = json.dumps(prepared).encode() + b"\n"
        self._size = size
        self._numbers = {b"%d" % rank for rank in range(size)}
        self._job = Job(JOB, secrets.token_hex(32))
        self._environment = {**without_job(os.environ), **environment, "HVDLITE_RUN_SECRET": self._job.secret}
        worker = [sys.executable, "-m", "hvdlite.running.worker"]
        self._arguments = ["-np", str(size), "--stdin", "none", *words, "--", *worker]
        self._outcomes: dict[int, tuple[bytes, memoryview]] = {}
        self._report = b""
        self._has_ended = False

    def results(self) -> list[Any]:
        """Starts the ranks, waits for them and returns their results. Raises what `hvdlite.run` does."""
        with ExitStack() as stack:
            listener = Listener.within_host(f"hvdlite-run-{secrets.token_hex(16)}")
            server = QueryServer(listener, self._job.key("run"), MAX_BYTES)
            stack.callback(server.close, linger_s=0.0)
            process, pipe = self._start(name_of(listener), stack)
            self._serve(server, pipe)
            code = process.wait(_END_S)
        self._raise_failure(code)
        return [load(self._outcomes[rank][1]) for rank in range(self._size)]

    def _start(self, address: str, stack: ExitStack) -> tuple[subprocess.Popen[bytes], int]:
        """Starts hvdrun, and returns it with the pipe that it reports on; ``stack`` ends both."""
        pipe, written = os.pipe()
        stack.callback(os.close, pipe)
        command = [sys.executable, "-m", "hvdlite.running.launch", str(os.getpid()), str(written), *self._arguments]
        environment = {**self._environment, "HVDLITE_RUN_ADDRESS": address}
        try:
            # A session of its own: Ctrl-C in a terminal reaches the caller, and the caller ends hvdrun.
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, pass_fds=(written,), start_new_session=True
            )
        finally:
            os.close(written)
        stack.callback(_end, process)
        return process, pipe

    def _serve(self, server: QueryServer, pipe: int) -> None:
        """Answers workers until hvdrun has ended and all that they sent before is answered."""
        server.poller.set(pipe, select.POLLIN, lambda _: self._read_report(server, pipe))
        while not self._has_ended:
            for question, asked in server.turn(float("inf")):
                self._answer(question, asked)

    def _read_report(self, server: QueryServer, pipe: int) -> None:
        data = os.read(pipe, _READ_BYTES)
        self._report += data
        if not data:
            server.poller.let_go(pipe)
            self._has_ended = True

    def _answer(self, question: Query, asked: bytearray) -> None:
        head, body = split(asked)
        words = head.split()
        if len(words) != 2 or words[1] not in self._numbers:
            question.hang_up()
        elif words[0] == FETCH:
            question.answer(self._preparation, self._call)
        elif words[0] in (RESULT, FAILURE):
            self._outcomes[int(words[1])] = words[0], body
            question.answer(b"")
        else:
            question.hang_up()

    def _raise_failure(self, code: int) -> None:
        """Raises the error of a job that ended with ``code`` unless every rank has a result."""
        if self._report:
            self._raise_reported(json.loads(self._report.splitlines()[0]))
        if code:
            raise LaunchError(f"hvdrun ended with code {code}, and with it all ranks")
        silent = [rank for rank in range(self._size) if rank not in self._outcomes]
        if silent:
            raise LaunchError(
                f"rank(s) {shortened(silent)} ended without a result; the function must return, not end its process"
            )

    def _raise_reported(self, report: dict[str, Any]) -> NoReturn:
        if "error" in report:
            error = {"ValueError": ValueError, "BadHostSpec": BadHostSpec}.get(report["error"], LaunchError)
            raise error(report["message"])
        rank, host = report["rank"], report["host"]
        kind, body = self._outcomes.get(rank, (b"", memoryview(b"")))
        if kind == FAILURE:
            failed = FunctionFailed(rank, host, bytes(body).decode(errors="replace"))
            for other, text in self._other_failures(failed):
                failed.add_note(f"rank {other} failed as well: {text}")
            raise failed
        raise WorkerFailed(rank, host, report["code"], report["last_lines"])

    def _other_failures(self, first: FunctionFailed) -> Iterator[tuple[int, str]]:
        """The ranks whose functions failed with another error than the ``first``, and these errors."""
        known = _last_line(first.traceback)
        for rank, (kind, body) in sorted(self._outcomes.items()):
            if kind == FAILURE and (text := _last_line(bytes(body).decode(errors="replace"))) != known:
                yield rank, text


def _last_line(text: str) -> str:
    return (text.splitlines() or [""])[-1]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends hvdrun, which ends its ranks, unless it has ended already."""
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

"""A job of ranks that reduce on test hosts, for tests that do something to it."""

from __future__ import annotations

import json
import os
import select
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.faults.worker import Report
from tests.harness.hosts import HostProcess, Network
from tests.harness.patience import LAST_RESORTS, PATIENCE_S
from tests.launcher.hvdrun import COMMAND

_WORKER = "tests.faults.worker"


@dataclass(frozen=True)
class Ended:
    """The end of a job: hvdrun's exit code and stderr, and the reports of the ranks that survived."""

    code: int
    said: str
    reports: Mapping[int, Report]


class Training:
    """A job that runs. Its ranks reduce until `finish`, or until something ends them."""

    def __init__(self, network: Network, process: HostProcess, stop_file: Path) -> None:
        self.network, self.process, self._stop_file = network, process, stop_file
        self._out, self._err = b"", b""

    def rank(self, number: int) -> psutil.Process:
        """The process of a rank."""
        ranks = [process for host in self.network for process in host.processes(_WORKER)]
        (found,) = (rank for rank in ranks if rank.environ().get("HVDLITE_RANK") == str(number))
        return found

    @property
    def steps(self) -> int:
        """The steps that rank 0 has told of."""
        return self._out.count(b"<stdout>:step ")

    def wait_for_steps(self, more: int, within_s: float = PATIENCE_S) -> None:
        """Returns when the ranks have made ``more`` steps from now. Fails if they end before, or do not in time."""
        self._read(0.0)
        wanted, deadline = self.steps + more, time.monotonic() + within_s
        while self.steps < wanted:
            if not self._read(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"no {more} steps within {within_s} s\n{self._shown()}")

    def wait_for_words(self, words: str, within_s: float = PATIENCE_S) -> None:
        """Returns when ``words`` have come on stderr. Fails if the ranks end before, or if they do not come in time."""
        deadline = time.monotonic() + within_s
        while words.encode() not in self._err:
            if not self._read(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"no {words!r} within {within_s} s\n{self._shown()}")

    def finish(self, within_s: float = PATIENCE_S) -> Ended:
        """Has the ranks stop after their present step, and returns how the job ended."""
        self._stop_file.touch()
        return self.end(within_s)

    def end(self, within_s: float = PATIENCE_S) -> Ended:
        """Waits for the job to end by itself. Fails if it does not in time."""
        deadline = time.monotonic() + within_s
        while self._read(max(0.0, deadline - time.monotonic())):
            pass
        if time.monotonic() >= deadline:
            raise AssertionError(f"the job has not ended within {within_s} s\n{self._shown()}")
        reports = [Report(**json.loads(line)) for line in self._lines() if line.startswith("{")]
        code = self.process.wait(PATIENCE_S)
        return Ended(code, self._err.decode(), {report.rank: report for report in reports})

    def _lines(self) -> list[str]:
        return [line.partition("<stdout>:")[2] for line in self._out.decode().splitlines()]

    def _read(self, timeout_s: float) -> bool:
        """Takes in what hvdrun has written; False at the end of it, or if nothing came in time."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        pipes = [pipe for pipe in (self.process.stdout, self.process.stderr) if not pipe.closed]
        ready, _, _ = select.select(pipes, [], [], timeout_s) if pipes else ([], [], [])
        for pipe in ready:
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                pipe.close()
            elif pipe is self.process.stdout:
                self._out += data
            else:
                self._err += data
        return bool(ready)

    def _shown(self) -> str:
        return f"{self._out.decode()[-2000:]}\n{self._err.decode()[-4000:]}"


@contextmanager
def training(
    network: Network,
    hosts: str = "a:2,b:2",
    *,
    length: int = 4 << 20,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = (),
) -> Iterator[Training]:
    """A job on ``hosts``, started from host a, whose ranks reduce ``length`` bytes at a time and have begun.

    ``program`` is what runs the interpreter on each rank, such as faketime. What is left at the end is killed.
    """
    with tempfile.TemporaryDirectory(prefix="training-") as folder:
        stop_file = Path(folder, "stop")
        worker = (*program, sys.executable, "-m", _WORKER, str(length), str(stop_file))
        command = (*COMMAND, "-H", hosts, *options, *worker)
        with network["a"].popen(*command, env={**LAST_RESORTS, **(environment or {})}) as process:
            job = Training(network, process, stop_file)
            job.wait_for_steps(3)
            yield job

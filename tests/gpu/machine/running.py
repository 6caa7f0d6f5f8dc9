"""Runs stages one after the other, each with a time limit, and remembers those that have passed.

A folder has a log for each stage, ``summary.txt`` with a line for each as it ends, and what stages write there. A stage
that has passed with the sources as they are now is skipped.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[3]
_SOURCES: Final = ("hvdlite", "launcher", "native", "tests/gpu", "tests/frontends", "tests/harness", "examples")
_LAST_LINES: Final = 15  # of the log of a stage that fails
_WORDS_S: Final = 5.0  # for the last words of a stage that is interrupted


class Stage(NamedTuple):
    """Commands that are run until one fails, within ``limit_s`` altogether."""

    name: str
    limit_s: float
    commands: Sequence[Sequence[str]]
    environ: Mapping[str, str] = {}


def digest() -> str:
    """Names the sources as they are now, which are what stages run; there may be no git."""
    made = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cc", ".h") and path.is_file():
                made.update(f"{path.relative_to(ROOT)}\0".encode())
                made.update(path.read_bytes())
    return made.hexdigest()[:16]


class Run:
    """Stages whose logs go to ``folder``, and which end ``budget_s`` from now, if that is not None."""

    def __init__(self, folder: Path, environ: Mapping[str, str], budget_s: float | None = None) -> None:
        self._folder = folder
        self._environ = environ
        self._end = None if budget_s is None else time.monotonic() + budget_s
        self._key = f"{digest()} {sorted(environ.items())}"
        folder.mkdir(parents=True, exist_ok=True)

    def has_passed(self, stage: Stage) -> bool:
        """True if the stage has passed with the sources, the settings and the commands as they are now."""
        mark = self._mark(stage)
        return mark.is_file() and mark.read_text() == self._key_of(stage)

    def run(self, stages: Iterable[Stage], again: bool = False) -> bool:
        """Runs the stages, those that have passed too if ``again``. Returns true if all have passed, now or before."""
        results = [self._one(stage, again) for stage in stages]
        return all(results)

    def _one(self, stage: Stage, again: bool) -> bool:
        if not again and self.has_passed(stage):
            self._say(f"{stage.name:14} passed before")
            return True
        left = stage.limit_s if self._end is None else min(stage.limit_s, self._end - time.monotonic())
        if left < min(stage.limit_s, 5):
            self._say(f"{stage.name:14} NOT RUN: no time left")
            return False
        self._mark(stage).unlink(missing_ok=True)
        begin = time.monotonic()
        outcome = self._commands(stage, begin + left)
        self._say(f"{stage.name:14} {outcome or 'passed'} in {time.monotonic() - begin:.0f} s")
        if outcome:
            lines = self._log(stage).read_text(errors="replace").splitlines()
            print(*(f"    {line}" for line in lines[-_LAST_LINES:]), sep="\n", flush=True)
            return False
        self._mark(stage).write_text(self._key_of(stage))
        return True

    def _commands(self, stage: Stage, end: float) -> str:
        """Returns how the first command that failed ended; empty if none did."""
        with self._log(stage).open("w") as log:
            for command in stage.commands:
                log.write(f"$ {' '.join(command)}\n")
                log.flush()
                process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env={**os.environ, **self._environ, **stage.environ},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                try:
                    code = process.wait(max(0.0, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    _interrupt(process)
                    return f"FAILED: not done after {stage.limit_s:g} s or the time that was left,"
                finally:
                    _kill(process)
                if code:
                    return f"FAILED with {code}"
        return ""

    def _say(self, line: str) -> None:
        print(line, flush=True)
        with (self._folder / "summary.txt").open("a") as summary:
            summary.write(f"{time.strftime('%F %T', time.gmtime())} {line}\n")

    def _log(self, stage: Stage) -> Path:
        return self._folder / f"{stage.name}.log"

    def _mark(self, stage: Stage) -> Path:
        return self._folder / f"{stage.name}.passed"

    def _key_of(self, stage: Stage) -> str:
        return f"{self._key} {stage}"


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Lets the command say what it has found until now, as pytest does."""
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_WORDS_S)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of the command's process group, and waits for the command."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

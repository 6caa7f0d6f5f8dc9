"""Plays a scenario of the contract with one set of ranks, and notes what came of it."""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hvdlite.rendezvous.presence import names_at
from tests.engines.rows import Row
from tests.engines.starting import ROOT
from tests.harness import leaks
from tests.harness.patience import LAST_RESORTS, NEVER_SILENT, PATIENCE_S
from tests.launcher.hvdrun import still_alive

RANKS = 2
SIGNALS = {"interrupted": signal.SIGINT, "terminated": signal.SIGTERM}


@dataclass(slots=True)
class Outcome:
    """What ranks reported by event, what the caller printed, its exit code and when it ended, and what is left.

    ``shown`` are the places where a key was found; ``keys`` counts the keys that were looked for.
    """

    reports: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    log: str = ""
    code: int = 0
    ended_at: float = 0.0
    keys: int = 0
    shown: set[str] = field(default_factory=set)
    files: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)

    def one(self, event: str) -> dict[str, Any]:
        """The only report of ``event``."""
        (report,) = self.reports[event]
        return report


def play(row: Row, scenario: str) -> Outcome:
    """Runs one job of ``row``, in folders of its own, and waits for its end. The row's cluster is there already."""
    outcome = Outcome()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        places = {name: f"{folder}/{name}" for name in ("tmp", "home", "cwd")}
        for place in places.values():
            os.mkdir(place)
        for name in ("reports", "gate"):
            os.mkfifo(f"{folder}/{name}")
        # Opened for both, so that no rank waits for the other end, and none finds it closed before it was there.
        reports = os.open(f"{folder}/reports", os.O_RDWR)
        stack.callback(os.close, reports)
        gate = os.open(f"{folder}/gate", os.O_RDWR)
        log = stack.enter_context(open(f"{folder}/log", "wb"))
        before = leaks.holdings()
        environ = {**os.environ, **LAST_RESORTS, **NEVER_SILENT, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        environ |= {"TMPDIR": places["tmp"], "HOME": places["home"], **row.environment}
        part = "waits" if scenario in SIGNALS else scenario
        caller = subprocess.Popen(
            row.caller(RANKS, part, folder),
            env=environ,
            cwd=places["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            lines = _lines(reports, caller, Path(folder, "log"))
            for _ in range(RANKS):
                _note(outcome, next(lines))
            keys = {key for report in outcome.reports.get("ready", []) for key in report["keys"]}
            outcome.keys = len(keys)
            outcome.shown |= _shown(keys, folder, row.stored())
            ranks = [row.pid(report["rank"], report["pid"]) for report in outcome.reports["ready"]]
            shared = _shared_files([caller.pid, *ranks])
            if scenario in SIGNALS:
                caller.send_signal(SIGNALS[scenario])
            else:
                os.close(gate)
                gate = -1
            outcome.code = caller.wait(PATIENCE_S)
            outcome.ended_at = time.monotonic()
        finally:
            if gate >= 0:
                os.close(gate)
            if caller.poll() is None:
                caller.kill()
                caller.wait()
        _note_rest(outcome, reports)
        outcome.log = Path(folder, "log").read_text(errors="replace")
        outcome.shown |= _shown(keys, folder, row.stored())
        if row.keeps_processes:
            held = {pid: [name for name in names_at(pid) if name.startswith("hvdlite")] for pid in ranks}
            outcome.processes = [f"{pid} holds {', '.join(names)}" for pid, names in held.items() if names]
        else:
            outcome.processes = [f"rank {pid}" for pid in still_alive(ranks, PATIENCE_S)]
        log.close()
        outcome.processes += leaks.left_since(before)
        outcome.files = [str(path.relative_to(folder)) for place in places.values() for path in Path(place).rglob("*")]
        outcome.files += sorted(path for path in shared if Path(path).exists())
        outcome.files += row.files()
    return outcome


def _lines(reports: int, caller: subprocess.Popen[bytes], log: Path) -> Iterator[bytes]:
    """The ranks' reports as they come. Fails with the log if the caller ends or the time is over before."""
    deadline, found = time.monotonic() + PATIENCE_S, b""
    while True:
        while b"\n" in found:
            line, _, found = found.partition(b"\n")
            yield line
        if select.select([reports], [], [], 0.1)[0]:
            found += os.read(reports, 1 << 16)
        elif caller.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{caller.args} ended before its ranks were ready\n{log.read_text(errors='replace')}")


def _note(outcome: Outcome, line: bytes) -> None:
    report = json.loads(line)
    outcome.reports.setdefault(report["event"], []).append(report)


def _note_rest(outcome: Outcome, reports: int) -> None:
    """Notes what is still in the pipe; every rank has ended, or written what it had to say."""
    found = b""
    while select.select([reports], [], [], 0)[0]:
        found += os.read(reports, 1 << 16)
    for line in found.splitlines():
        _note(outcome, line)


def _shown(keys: set[str], folder: str, stored: str) -> set[str]:
    """Where one of ``keys`` can be read: arguments of processes, files of the job, what the engine has stored."""
    places = {"what the engine stores": stored.encode()}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):  # it has ended
                places[f"an argument of process {name}"] = Path("/proc", name, "cmdline").read_bytes()
    for path in Path(folder).rglob("*"):
        if path.is_file():
            places[str(path.relative_to(folder))] = path.read_bytes()
    forms = [form for key in keys for form in _forms(key)]
    return {place for place, data in places.items() if any(form in data for form in forms)}


def _forms(key: str) -> list[bytes]:
    raw = bytes.fromhex(key)
    return [key.encode(), key.upper().encode(), raw, base64.b64encode(raw).rstrip(b"=")]


def _shared_files(pids: list[int]) -> set[str]:
    """The files of /dev/shm that these processes and their children have mapped; others may run jobs now."""
    found: set[str] = set()
    for pid in pids:
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with suppress(psutil.Error, OSError):  # it has ended, or is another user's
                lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
                found.update(line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line)
    return found

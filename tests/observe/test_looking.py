"""An agent sees where the threads of a rank are, whatever the rank does, and disturbs nothing of it."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from hvdlite.blackbox import format as blackbox
from hvdlite.blackbox.format import ASKED_AT, NBYTES, OFFER, OFFER_AT
from hvdlite.launcher.agent.inspection import look
from hvdlite.launcher.agent.inspection.look import looking
from hvdlite.launcher.agent.ranks.workers import Worker, Workers
from hvdlite.launcher.stream.questions import Stacks
from tests.harness.patience import PATIENCE_S, until

_PROGRAM = """
import ctypes, fcntl, faulthandler, os, signal, sys, threading, time
from pathlib import Path

native, native_with_gil = ctypes.CDLL(None), ctypes.PyDLL(None)
real_time = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
{before}
import numpy as np
import hvdlite as hvd

def load():
    time.sleep(600)

def step():
    Path("ready").touch()
    {act}

hvd.init()
hvd.allreduce(np.ones(3), name="x")
threading.Thread(target=load, name="loader", daemon=True).start()
{after}
step()
Path("gone on").touch()
time.sleep(600)
"""
_PTRACE_SEIZE = 0x4206
_libc = ctypes.CDLL(None)

Looked = dict[str, Any]


class Rank:
    """A rank that acts in a function ``step``, which makes the file ``ready`` before."""

    def __init__(self, workers: Workers, worker: Worker, folder: Path) -> None:
        self._workers, self.worker, self.folder = workers, worker, folder
        until((folder / "ready").exists)

    @property
    def pid(self) -> int:
        return self.worker.process.pid

    @property
    def offer(self) -> tuple[int, int, int, int, float]:
        assert self.worker.blackbox is not None
        return OFFER.unpack(os.pread(self.worker.blackbox, OFFER.size, OFFER_AT))  # type: ignore[return-value]

    def look(self, *, shows_all: bool = False) -> Looked:
        looked: Looked = looking(self._workers, Stacks((0,), shows_all))()["0"]
        return looked

    def look_until(self, condition: Callable[[Looked], bool]) -> Looked:
        """Looks again until the rank has come to where ``condition`` is true."""
        looks: list[Looked] = []

        def holds() -> bool:
            looks.append(self.look())
            return condition(looks[-1])

        until(holds)
        return looks[-1]


Start = Callable[..., Rank]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Worker] = []

    def start(act: str = "", before: str = "", after: str = "", command: list[str] | None = None, **files: int) -> Rank:
        script = tmp_path / "train.py"
        script.write_text(_PROGRAM.format(act=act, before=before, after=after))
        workers = Workers()
        environment = {**os.environ, "HVDLITE_RANK": "0", "HVDLITE_SIZE": "1"}
        program = command or [sys.executable, str(script)]
        started.append(workers.start(0, program, environment, str(tmp_path), **files))
        return Rank(workers, started[-1], tmp_path)

    yield start
    for worker in started:
        with suppress(ProcessLookupError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait(PATIENCE_S)
        for descriptor in (*worker.pipes, worker.report, worker.pidfd, worker.blackbox):
            if descriptor is not None:
                os.close(descriptor)


def _main(looked: Looked) -> Looked:
    (main,) = (thread for thread in looked["threads"] if thread["is_main"])
    return dict(main)


def _places(thread: Looked) -> list[tuple[str, str]]:
    return [(Path(file).name, function) for file, _, function in thread["calls"]]


_HERE = [("train.py", "step"), ("train.py", "<module>")]


def _waits_in(*calls: str) -> Callable[[Looked], bool]:
    return lambda looked: any(thread["is_main"] and thread["syscall"] in calls for thread in looked["threads"])


def test_a_rank_that_runs_python_tells_where_its_threads_are(start: Start) -> None:
    rank = start("time.sleep(600)")
    looked = rank.look_until(_waits_in("clock_nanosleep", "pselect6", "select"))
    assert (looked["way"], looked["why"], looked["pid"], looked["tracer"]) == ("asked", "", rank.pid, "")
    main = _main(looked)
    assert _places(main) == _HERE
    assert main["calls"][0][1] > 0
    assert (main["state"], main["moved"], main["awake"]) == ("S", False, False)
    assert [thread["name"] for thread in looked["threads"]] == ["MainThread", "loader"]
    assert _places(looked["threads"][1]) == [("train.py", "load")]
    assert "hvdlite-recorder" in [thread["name"] for thread in rank.look(shows_all=True)["threads"]]


def test_a_state_and_a_stack_of_different_moments_are_told_from_each_other(start: Start) -> None:
    """The main thread sleeps for a moment again and again, the loader for long."""
    rank = start("while True: time.sleep(0.001)")
    looked = rank.look_until(lambda looked: looked["way"] == "asked" and len(looked["threads"]) == 2)
    main, loader = looked["threads"]
    assert main["awake"]
    assert (loader["moved"], loader["awake"]) == (False, False)


@pytest.mark.parametrize("lets_go", [True, False])
def test_a_rank_in_native_code_tells_from_where_it_was_called(start: Start, lets_go: bool) -> None:
    rank = start(f"{'native' if lets_go else 'native_with_gil'}.sleep(600)")
    looked = rank.look_until(_waits_in("clock_nanosleep", "nanosleep"))
    assert looked["way"] == ("asked" if lets_go else "signal")
    main = _main(looked)
    assert _places(main) == _HERE
    assert main["state"] == "S"
    assert "nanosleep" in main["wchan"] or main["wchan"] == ""
    assert [_places(thread) for thread in looked["threads"][1:]] == [[("train.py", "load")]]


def test_a_rank_that_holds_the_gil_and_computes_runs(start: Start) -> None:
    rank = start("import re; re.match('(a*)*b', 'a' * 64)")
    looked = rank.look_until(lambda looked: looked["way"] == "signal")
    assert _places(_main(looked))[-2:] == _HERE
    assert _main(looked)["state"] == "R"


def test_a_rank_that_reads_stdin_is_called_that(start: Start) -> None:
    end, write = os.pipe()
    try:
        rank = start("sys.stdin.readline()", stdin=end)
        looked = rank.look_until(lambda looked: bool(looked["reads_stdin"]))
        assert _places(_main(looked))[-2:] == _HERE
    finally:
        os.close(end)
        os.close(write)


def test_a_rank_that_polls_stdin_is_called_that(start: Start) -> None:
    end, write = os.pipe()
    try:
        polling = "import select; p = select.poll(); p.register(0, select.POLLIN); p.poll(600_000)"
        assert start(polling, stdin=end).look_until(lambda looked: bool(looked["reads_stdin"]))
    finally:
        os.close(end)
        os.close(write)


def test_a_rank_that_reads_another_pipe_is_not(start: Start) -> None:
    rank = start("os.read(os.pipe()[0], 1)")
    assert rank.look_until(_waits_in("read"))["reads_stdin"] is False


@contextmanager
def _traced(tid: int) -> Iterator[None]:
    """Traces a thread, from one of this process: whose end lets it go."""
    done = threading.Event()
    seized: SimpleQueue[int] = SimpleQueue()

    def trace() -> None:
        seized.put(_libc.ptrace(_PTRACE_SEIZE, tid, None, None))
        done.wait(PATIENCE_S)

    tracer = threading.Thread(target=trace)
    tracer.start()
    try:
        assert seized.get(timeout=PATIENCE_S) == 0
        yield
    finally:
        done.set()
        tracer.join()


def test_a_traced_rank_is_called_that_and_tells_where_it_is(start: Start) -> None:
    rank = start("time.sleep(600)")
    with _traced(rank.pid):
        looked = rank.look_until(_waits_in("clock_nanosleep", "pselect6", "select"))
    assert looked["tracer"].endswith(f"(process {os.getpid()})")
    assert _places(_main(looked)) == _HERE


def test_no_signal_goes_to_a_thread_that_is_traced(start: Start) -> None:
    """A debugger would stop the rank there."""
    rank = start("native_with_gil.sleep(600)")
    assert rank.look_until(lambda looked: looked["way"] == "signal")
    with _traced(rank.offer[1]):
        looked = rank.look()
    assert (looked["way"], looked["why"]) == ("", "its Python does not run, and it does not run freely")
    assert _main(looked)["syscall"] in ("clock_nanosleep", "nanosleep")


def test_a_rank_that_is_stopped_is_called_that(start: Start) -> None:
    rank = start("time.sleep(600)")
    os.kill(rank.pid, signal.SIGSTOP)
    looked = rank.look_until(lambda looked: looked["state"] == "T")
    assert looked["why"] == "it is stopped"


def test_so_is_one_that_is_stopped_before_it_can_answer(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = start("time.sleep(600)")
    ask = look.Box.ask

    def stop_and_ask(box: look.Box) -> None:
        os.kill(rank.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, rank.pid, os.WSTOPPED | os.WNOWAIT)
        ask(box)

    monkeypatch.setattr(look.Box, "ask", stop_and_ask)
    monkeypatch.setattr(look, "_ANSWER_S", 0.1)
    looked = rank.look()
    assert (looked["state"], looked["why"]) == ("T", "it is stopped")


def test_a_program_that_is_no_rank_is_described_by_its_processes(start: Start, tmp_path: Path) -> None:
    program = f"touch {tmp_path}/ready; sleep 600 & wait"  # each child is at first a copy of the shell
    looked = start(command=["bash", "-c", program]).look_until(
        lambda looked: [child["command"] for child in looked["children"]] == ["sleep 600"]
    )
    assert looked["why"] == "it has not called hvd.init()"
    (child,) = looked["children"]
    assert child["threads"][0]["state"] in "SR"


def test_below_a_shell_the_rank_is_the_python(start: Start, tmp_path: Path) -> None:
    rank = start("time.sleep(600)", command=["bash", "-c", f"{shlex.quote(sys.executable)} {tmp_path}/train.py; date"])
    looked = rank.look()
    assert looked["pid"] != rank.pid
    assert _places(_main(looked)) == _HERE


# ---- the signal


_COUNT_HANDLER = "caught = []\ndef handler(signum, frame): caught.append(signum)"


@pytest.mark.parametrize("free", [34, 40, 57])
def test_a_signal_that_the_program_took_before_is_left_alone(start: Start, free: int) -> None:
    if free == signal.SIGRTMIN:
        free += 1  # the first one is never taken: it is the one that people take
    taken = (
        "for signum in real_time:\n"
        f"    if signum != {free}:\n"
        "        if signum % 3 == 0: signal.signal(signum, lambda *_: os._exit(9))\n"
        "        elif signum % 3 == 1: signal.signal(signum, signal.SIG_IGN)\n"
        "        else: signal.pthread_sigmask(signal.SIG_BLOCK, {signum})"
    )
    rank = start("native_with_gil.sleep(600)", before=taken)
    until(lambda: rank.offer[0] != 0)
    assert rank.offer[0] == free
    assert _places(_main(rank.look_until(lambda looked: looked["way"] == "signal"))) == _HERE


def test_without_a_free_signal_there_is_none(start: Start) -> None:
    taken = "for signum in real_time: signal.signal(signum, lambda *_: os._exit(9))"
    rank = start("native_with_gil.sleep(600)", before=taken)
    looked = rank.look()
    assert rank.offer[0] == 0
    assert looked["why"] == "its Python does not run, and its program uses the signal that would ask for them"
    assert _main(looked)["syscall"] in ("clock_nanosleep", "nanosleep")


@pytest.mark.parametrize("how", ["signal.signal(offered(), lambda *_: os._exit(9))", "native.signal(offered(), SHOUT)"])
def test_a_signal_that_the_program_takes_later_is_given_up(start: Start, how: str) -> None:
    program = (
        "from hvdlite.blackbox.format import OFFER, OFFER_AT\n"
        "from hvdlite.settings import Settings\n"
        "SHOUT = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda signum: os._exit(9))\n"
        "def offered():\n"
        "    box = int(Settings.read().blackbox.partition(':')[0])\n"
        "    return OFFER.unpack(os.pread(box, OFFER.size, OFFER_AT))[0]\n"
        "while not offered(): time.sleep(0.01)\n"
        f"{how}\n"
        "while offered(): time.sleep(0.01)"
    )
    rank = start("native_with_gil.sleep(600)", after=program)
    assert rank.look()["why"].endswith("its program uses the signal that would ask for them")
    assert rank.look_until(_waits_in("clock_nanosleep", "nanosleep"))["state"] == "S"


def test_no_system_call_of_the_program_is_interrupted(start: Start) -> None:
    """The read holds the GIL, and would not be made again if it ended with EINTR. It goes on until there is a byte."""
    end, write = os.pipe()
    act = "Path('result').write_text(str(native_with_gil.read(0, ctypes.create_string_buffer(8), 8)))"
    rank = start(act, stdin=end)
    for _ in range(3):
        assert rank.look_until(lambda looked: looked["way"] == "signal")["reads_stdin"]
    assert not (rank.folder / "result").exists()
    os.write(write, b"12345")
    until((rank.folder / "gone on").exists)
    assert (rank.folder / "result").read_text() == "5"
    os.close(end)
    os.close(write)


def test_the_next_session_of_a_process_offers_a_signal_too(start: Start) -> None:
    rank = start("native_with_gil.sleep(600)", after="hvd.shutdown(); hvd.init()")
    assert _places(_main(rank.look_until(lambda looked: looked["way"] == "signal"))) == _HERE


def test_after_shutdown_the_handler_is_gone(start: Start) -> None:
    rank = start("time.sleep(600)", after="hvd.shutdown()")
    assert rank.look()["why"] == "it has left the job by hvd.shutdown()"
    assert rank.offer[0] == 0
    status = Path(f"/proc/{rank.pid}/status").read_text()
    (caught,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt"))
    assert caught >> signal.SIGRTMIN == 0


def test_a_process_that_replaced_the_rank_gets_no_signal(start: Start) -> None:
    """It has the descriptor, the pid and the box of the rank, but would die of the signal."""
    rank = start("time.sleep(5); os.execvp('sleep', ['sleep', '600'])", before="os.set_inheritable(0, True)")
    until(lambda: Path(f"/proc/{rank.pid}/comm").read_text() == "sleep\n")
    looked = rank.look()
    assert (looked["way"], looked["why"]) == ("", "its Python does not run, and its process is not what it was")
    assert rank.worker.process.poll() is None


def test_a_box_that_names_another_process_leads_nowhere(start: Start) -> None:
    """Neither one that is not below the agent, nor one without the memory."""
    rank = start("native_with_gil.sleep(600)")
    assert rank.look_until(lambda looked: looked["way"] == "signal")
    assert rank.worker.blackbox is not None
    other = subprocess.Popen(["sleep", "600"])
    try:
        for pid in (os.getpid(), os.getppid(), other.pid, 1, 2**31 - 1):
            os.pwrite(rank.worker.blackbox, struct.pack("<I", pid), len(blackbox.MARK))
            looked = rank.look()
            assert looked["pid"] == rank.pid
            assert looked["why"].startswith(f"process {pid}, which called hvd.init(), cannot be asked: ")
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize(
    "text", [b"[]", b"7", b'{"threads": 7}', b'{"threads": [[1, 2]]}', b"x" * 200_000, b"[" * 100_000]
)
def test_an_answer_that_is_none_is_left_out(start: Start, text: bytes) -> None:
    rank = start("native_with_gil.sleep(600)")
    box = rank.worker.blackbox
    assert box is not None
    number = int.from_bytes(os.pread(box, 8, ASKED_AT), "little") + 1
    shown = text[: blackbox.STACKS_BYTES]
    answer = blackbox.STACKS.pack(number, len(text), shown, number)
    os.pwrite(box, answer, blackbox.STACKS_AT)
    assert rank.look()["threads"]
    assert len(os.pread(box, 2 * NBYTES, 0)) == NBYTES

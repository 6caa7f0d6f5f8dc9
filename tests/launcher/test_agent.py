"""The agent by itself, driven with frames."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import psutil
import pytest

from hvdlite.launcher.agent.ranks.feed import WINDOW_BYTES
from hvdlite.launcher.spawners.boot import boot_here
from hvdlite.launcher.stream import messages
from hvdlite.launcher.stream.frames import GREETING
from hvdlite.launcher.stream.messages import (
    Alive,
    Answer,
    Ask,
    End,
    Exited,
    Input,
    Lease,
    Signal,
    Started,
    Stdout,
    Taken,
    WorkerStart,
)
from hvdlite.launcher.stream.questions import Clock, Evidence, FreePorts, IsFolder, Stacks, Unpack
from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import read_until
from tests.launcher.samples import START

M = TypeVar("M")


class Weather(NamedTuple):
    """A question that no agent knows."""


class Agent:
    """hvdrun's side of an agent, one step at a time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._decoder = messages.Decoder()
        self._messages: list[messages.Message] = []
        assert process.stdout is not None
        assert process.stdout.read(len(GREETING)) == GREETING
        (agent,) = psutil.Process(process.pid).children()  # the process that was started is its guard
        self.pid = agent.pid

    def send(self, message: messages.Message) -> None:
        self.send_bytes(messages.encode(message))

    def send_bytes(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def start(self, *programs: str, reads: bool = False) -> None:
        workers = tuple(WorkerStart(rank, {"PROGRAM": program}, reads) for rank, program in enumerate(programs))
        self.send(START._replace(workers=workers))

    def next(self, kind: type[M]) -> M:
        """The next message of ``kind``; messages of other kinds stay for later."""
        assert self.process.stdout is not None
        while True:
            for index, message in enumerate(self._messages):
                if isinstance(message, kind):
                    del self._messages[index]
                    return message
            piece = read_until(self.process.stdout.fileno(), lambda found: found != b"")
            self._messages += self._decoder.feed(piece)


def wait_for_zombie(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        os.sched_yield()


@contextmanager
def agent(stderr: int | None = None) -> Iterator[Agent]:
    command = [sys.executable, *boot_here()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0)
    try:
        yield Agent(process)
    except BaseException:
        process.kill()  # at its end, it could only hide why the test failed
        raise
    finally:
        process.communicate(timeout=PATIENCE_S)


def test_an_agent_that_starts_loads_nothing_but_the_standard_library() -> None:
    with agent() as running:
        running.start("sleep 600")
        running.next(Started)
        maps = Path(f"/proc/{running.pid}/maps").read_text()
        assert "site-packages" not in maps
        assert psutil.Process(running.pid).memory_info().rss < 30 << 20


@pytest.mark.parametrize(
    "files", [(), ("__init__.py",), ("__init__.py", "_psutil_linux.cpython-27-x86_64-linux-gnu.so")]
)
def test_an_agent_without_psutil_for_its_python_ends_with_one_sentence(tmp_path: Path, files: tuple[str, ...]) -> None:
    for name in files:
        (tmp_path / "psutil").mkdir(exist_ok=True)
        (tmp_path / "psutil" / name).touch()
    command = [sys.executable, *boot_here()]
    command[-1] = str(tmp_path)
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 1
    assert ended.stderr == f"psutil, which hvdlite needs, is not installed for {sys.executable}\n"


def test_ranks_have_the_limit_of_descriptors_that_the_agent_was_started_with() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (own := min(hard, 1000) - 1, hard))
    try:
        with agent() as running:
            running.start("ulimit -Sn; ulimit -Hn")
            assert running.next(Stdout).data.split() == [str(own).encode(), str(hard).encode()]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_deaths_of_ranks_are_told_in_their_order(tmp_path: Path) -> None:
    doors = [tmp_path / str(rank) for rank in range(3)]
    for door in doors:
        os.mkfifo(door)
    with agent() as running:
        running.start(*(f"echo ready; read word < {door}; exit 1{rank}" for rank, door in enumerate(doors)))
        pids = [running.next(Started).pid for _ in doors]
        assert [running.next(Stdout).data for _ in doors] == [b"ready\n"] * 3
        os.kill(running.pid, signal.SIGSTOP)
        for rank in (2, 0, 1):
            doors[rank].write_text("go\n")
            wait_for_zombie(pids[rank])
        os.kill(running.pid, signal.SIGCONT)
        exits = [running.next(Exited) for _ in doors]
    assert [end.code for end in exits] == [12, 10, 11]


def test_an_agent_that_is_not_read_stops_reading_and_loses_nothing() -> None:
    total = 12 << 20
    with agent() as running:
        running.start(f"head -c {total} /dev/zero")
        pid = running.next(Started).pid
        # The worker is blocked in its write as soon as the agent holds what it may.
        assert psutil.Process(pid).is_running()
        found = 0
        while found < total:
            assert psutil.Process(running.pid).memory_info().rss < 40 << 20
            found += len(running.next(Stdout).data)
        assert found == total
        assert running.next(Exited).code == 0


def test_what_is_no_frame_ends_the_agent_and_its_workers() -> None:
    with agent() as running:
        running.start("sleep 600")
        pid = running.next(Started).pid
        running.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
        assert running.next(Exited).code == -signal.SIGTERM
        assert running.process.wait(PATIENCE_S) == 0
        assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    "message",
    [
        Lease(1.0, []),  # type: ignore[arg-type]
        Signal("9", everyone=False),  # type: ignore[arg-type]
        Signal(10**30, everyone=False),
        End(0.0, None),  # type: ignore[arg-type]
        Ask(1, IsFolder(5)),  # type: ignore[arg-type]
        Ask(1, FreePorts("127.0.0.1", (0, 70_000), 3)),
        Ask(1, Stacks(5, all=False)),  # type: ignore[arg-type]
        Ask(1, Evidence((0,), float("nan"))),
        Ask(1, Weather()),  # type: ignore[arg-type]
        START._replace(listen=[]),
        START._replace(workers=[1]),
        Started(0, 1),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_malformed_message_ends_the_agent_and_its_workers_by_a_sentence(message: messages.Message) -> None:
    with agent(stderr=subprocess.PIPE) as running:
        running.start("sleep 600")
        pid = running.next(Started).pid
        running.send(message)
        assert running.process.stderr is not None
        said = running.process.stderr.read().decode()
        assert said.startswith("hvdlite agent: hvdrun sent an invalid message (the message ")
        assert said.count("\n") == 1
        assert not psutil.pid_exists(pid)


def test_questions_are_answered_each_by_its_number() -> None:
    with agent() as running:
        running.send(Ask(1, IsFolder("/")))
        running.send(Ask(2, IsFolder("/nowhere")))
        running.send(Ask(3, Unpack("x")))
        answers = [running.next(Answer) for _ in range(3)]
    assert sorted(answers) == [
        Answer(1, True, ""),
        Answer(2, False, ""),
        Answer(3, None, "no archive for 'x' has come"),
    ]


def test_ports_that_frameworks_may_have_are_the_last_free_ones_of_the_range() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, agent() as running:
        port = taken.getsockname()[1]
        for number, ports in enumerate(((port, port), (port - 50, port), None)):
            running.send(Ask(number, FreePorts("127.0.0.1", ports, 3)))
        answers = dict(sorted((answer.id, answer) for answer in (running.next(Answer) for _ in range(3))))
    assert answers[0].error == f"no port of 127.0.0.1 is free from {port} to {port}"
    assert len(set(answers[1].answer)) == 3
    assert all(port - 50 <= each < port for each in answers[1].answer)
    assert len({0, port, *answers[2].answer}) == 5


def test_an_agent_whose_lease_runs_out_ends_its_workers() -> None:
    with agent() as running:
        running.start("trap '' TERM; echo up; while :; do sleep 600; done")
        running.next(Stdout)
        running.send(Lease(1.5, 0.2))
        assert running.next(Alive).sent == 1.5
        ended = running.next(Exited)
        assert (ended.code, ended.agent) == (-signal.SIGKILL, "which received nothing from hvdrun for 0.2 s")
        assert running.process.wait(PATIENCE_S) == 0


def test_a_lease_without_end_replaces_one_that_ends() -> None:
    with agent() as running:
        running.start("echo up; sleep 1; exit 3")
        running.next(Stdout)
        for for_s in (0.2, None):
            running.send(Lease(1.5, for_s))
        ended = running.next(Exited)
        assert (ended.code, ended.agent) == (3, "")


def test_a_signal_for_the_ranks_passes_by_what_they_started() -> None:
    child = "trap 'echo child; exit 1' USR1; echo up; while :; do sleep 0.05; done"
    with agent() as running:
        running.start(f"trap 'echo rank; kill -TERM $!; wait; exit 4' USR1; sh -c \"{child}\" & while :; do wait; done")
        assert running.next(Stdout).data == b"up\n"
        running.send(Signal(signal.SIGUSR1, everyone=False))
        assert running.next(Stdout).data == b"rank\n"
        assert running.next(Exited).code == 4


def test_workers_of_another_host_inherit_what_the_agent_has() -> None:
    with agent() as running:
        start = START._replace(
            command=("sh", "-c", "echo $OF_AGENT $OF_JOB $OF_RANK $PATH $NONE"),
            environment={"OF_JOB": "j", "OF_AGENT": "replaced"},
            appended={"PATH": "/last", "NONE": "/only"},
            inherits=True,
            workers=(WorkerStart(0, {"OF_RANK": "0"}, reads=False),),
        )
        running.send(start)
        assert running.next(Stdout).data == f"replaced j 0 {os.environ['PATH']}:/last /only\n".encode()
        assert running.next(Exited).code == 0


def test_stdin_goes_no_further_than_the_pipe_of_a_rank_and_every_byte_is_reported() -> None:
    with agent() as running:
        running.start("head -c 1000 > /dev/null; sleep 600", reads=True)
        running.send(Input(0, b"x" * WINDOW_BYTES))
        taken = 0
        while taken < WINDOW_BYTES // 4:
            taken += running.next(Taken).nbytes or 0
        running.send(Input(0, b""))
        running.send(Ask(1, Clock()))
        running.next(Answer)  # the agent goes on while the pipe is full
        assert taken < WINDOW_BYTES
        running.send(End(0.0, 0.0))
        assert running.next(Exited).code < 0


def test_a_rank_that_closed_its_stdin_is_reported() -> None:
    with agent() as running:
        running.start("exec <&-; echo closed; sleep 600", reads=True)
        running.next(Stdout)
        running.send(Input(0, b"x"))
        assert running.next(Taken) == (0, None)


def test_an_agent_needs_the_standard_library_alone() -> None:
    root = Path(__file__).resolve().parents[2]
    rooms = ("agent", "stream")
    modules = [f"{room}.{path.stem}" for room in rooms for path in (root / "launcher" / room).glob("*.py")]
    assert "agent.agent" in modules
    program = (
        "import importlib, sys, types\n"
        "for name in 'hvdlite', 'hvdlite.launcher':\n"
        "    sys.modules[name] = types.ModuleType(name); sys.modules[name].__path__ = [sys.argv.pop(1)]\n"
        "for module in sys.argv[1:]: importlib.import_module(f'hvdlite.launcher.{module}')\n"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(root / "hvdlite"), str(root / "launcher"), *modules]
    subprocess.run(command, check=True, timeout=PATIENCE_S)

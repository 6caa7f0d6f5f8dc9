"""The agent by itself, driven with frames."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from hvdlite.launcher.agent.feed import WINDOW_BYTES
from hvdlite.launcher.spawners.boot import boot_here
from hvdlite.launcher.stream.frames import (
    GREETING,
    FrameReader,
    Kind,
    pack_message,
    pack_output,
    unpack_message,
    unpack_output,
)
from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import read_until


class Agent:
    """hvdrun's side of an agent, one step at a time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._reader = FrameReader()
        self._frames: list[tuple[Kind, bytes]] = []
        assert process.stdout is not None
        assert process.stdout.read(len(GREETING)) == GREETING
        (agent,) = psutil.Process(process.pid).children()  # the process that was started is its guard
        self.pid = agent.pid

    def send(self, kind: Kind, **fields: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(pack_message(kind, **fields))

    def start(self, *programs: str) -> None:
        workers = [{"rank": rank, "environment": {"PROGRAM": program}} for rank, program in enumerate(programs)]
        command = ["sh", "-c", 'eval "$PROGRAM"']
        environment = {"PATH": os.environ["PATH"]}
        self.send(
            Kind.START, cwd="/", command=command, environment=environment, inherits=False, listen={}, workers=workers
        )

    def next(self, kind: Kind) -> bytes:
        """The payload of the next frame of ``kind``; frames of other kinds stay for later."""
        assert self.process.stdout is not None
        while True:
            for index, (found, payload) in enumerate(self._frames):
                if found is kind:
                    del self._frames[index]
                    return payload
            piece = read_until(self.process.stdout.fileno(), lambda found: found != b"")
            self._frames += self._reader.feed(piece)


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


def test_the_agent_loads_nothing_but_the_standard_library() -> None:
    with agent() as running:
        running.start("sleep 600")
        running.next(Kind.STARTED)
        maps = Path(f"/proc/{running.pid}/maps").read_text()
        assert "site-packages" not in maps
        assert psutil.Process(running.pid).memory_info().rss < 30 << 20


def test_the_deaths_of_ranks_are_told_in_their_order(tmp_path: Path) -> None:
    doors = [tmp_path / str(rank) for rank in range(3)]
    for door in doors:
        os.mkfifo(door)
    with agent() as running:
        running.start(*(f"echo ready; read word < {door}; exit 1{rank}" for rank, door in enumerate(doors)))
        pids = [unpack_message(running.next(Kind.STARTED))["pid"] for _ in doors]
        assert [unpack_output(running.next(Kind.STDOUT))[1] for _ in doors] == [b"ready\n"] * 3
        os.kill(running.pid, signal.SIGSTOP)
        for rank in (2, 0, 1):
            doors[rank].write_text("go\n")
            wait_for_zombie(pids[rank])
        os.kill(running.pid, signal.SIGCONT)
        exits = [unpack_message(running.next(Kind.EXITED)) for _ in doors]
    assert [end["code"] for end in exits] == [12, 10, 11]


def test_an_agent_that_is_not_read_stops_reading_and_loses_nothing() -> None:
    total = 12 << 20
    with agent() as running:
        running.start(f"head -c {total} /dev/zero")
        pid = unpack_message(running.next(Kind.STARTED))["pid"]
        # The worker is blocked in its write as soon as the agent holds what it may.
        assert psutil.Process(pid).is_running()
        found = 0
        while found < total:
            assert psutil.Process(running.pid).memory_info().rss < 40 << 20
            found += len(unpack_output(running.next(Kind.STDOUT))[1])
        assert found == total
        assert unpack_message(running.next(Kind.EXITED))["code"] == 0


def test_what_is_no_frame_ends_the_agent_and_its_workers() -> None:
    with agent() as running:
        running.start("sleep 600")
        pid = unpack_message(running.next(Kind.STARTED))["pid"]
        assert running.process.stdin is not None
        running.process.stdin.write(b"GET / HTTP/1.1\r\n\r\n")
        assert unpack_message(running.next(Kind.EXITED))["code"] == -signal.SIGTERM
        assert running.process.wait(PATIENCE_S) == 0
        assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Kind.LEASE, {"for_s": [], "sent": 1.0}),
        (Kind.SIGNAL, {"signum": "9", "everyone": False}),
        (Kind.SIGNAL, {"signum": 10**30, "everyone": False}),
        (Kind.END, {"grace_s": None}),
        (Kind.ASK, {"id": 1}),
        (Kind.ASK, {"id": 1, "what": "stacks", "ranks": 5, "more": []}),
        (Kind.START, {"inherits": False, "listen": [], "workers": []}),
        (Kind.START, {"inherits": False, "listen": {}, "workers": [1]}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_malformed_frame_ends_the_agent_and_its_workers_by_a_sentence(kind: Kind, fields: dict[str, object]) -> None:
    with agent(stderr=subprocess.PIPE) as running:
        running.start("sleep 600")
        pid = unpack_message(running.next(Kind.STARTED))["pid"]
        running.send(kind, **fields)
        assert running.process.stderr is not None
        told = running.process.stderr.read().decode()
        assert told.startswith("hvdlite agent: hvdrun sent an invalid message (")
        assert told.count("\n") == 1
        assert not psutil.pid_exists(pid)


def test_questions_are_answered_each_by_its_number() -> None:
    with agent() as running:
        running.send(Kind.ASK, id=1, what="is_folder", path="/")
        running.send(Kind.ASK, id=2, what="is_folder", path="/nowhere")
        running.send(Kind.ASK, id=3, what="is_folder")
        running.send(Kind.ASK, id=4, what="the weather")
        answers = [unpack_message(running.next(Kind.ANSWER)) for _ in range(4)]
    assert sorted(answers, key=lambda answer: int(answer["id"])) == [
        {"id": 1, "answer": True},
        {"id": 2, "answer": False},
        {"id": 3, "error": "the question 'is_folder' lacks 'path'"},
        {"id": 4, "error": "this agent has no answer to 'the weather'"},
    ]


def test_ports_that_frameworks_may_have_are_the_last_free_ones_of_the_range() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, agent() as running:
        port = taken.getsockname()[1]
        for number, ports in enumerate(([port, port], [port - 50, port], None)):
            running.send(Kind.ASK, id=number, what="free_ports", address="127.0.0.1", ports=ports, count=3)
        answers = {answer.pop("id"): answer for answer in (unpack_message(running.next(Kind.ANSWER)) for _ in range(3))}
    assert answers[0] == {"error": f"no port of 127.0.0.1 is free from {port} to {port}"}
    assert len(set(answers[1]["answer"])) == 3
    assert all(port - 50 <= each < port for each in answers[1]["answer"])
    assert len({0, port, *answers[2]["answer"]}) == 5


def test_an_agent_whose_lease_runs_out_ends_its_workers() -> None:
    with agent() as running:
        running.start("trap '' TERM; echo up; while :; do sleep 600; done")
        running.next(Kind.STDOUT)
        running.send(Kind.LEASE, sent=1.5, for_s=0.2)
        assert unpack_message(running.next(Kind.LEASE))["sent"] == 1.5
        ended = unpack_message(running.next(Kind.EXITED))
        assert (ended["code"], ended["agent"]) == (-signal.SIGKILL, "which heard nothing from hvdrun for 0.2 s")
        assert running.process.wait(PATIENCE_S) == 0


def test_a_signal_for_the_ranks_passes_by_what_they_started() -> None:
    child = "trap 'echo child; exit 1' USR1; echo up; while :; do sleep 0.05; done"
    with agent() as running:
        running.start(f"trap 'echo rank; kill -TERM $!; wait; exit 4' USR1; sh -c \"{child}\" & while :; do wait; done")
        assert unpack_output(running.next(Kind.STDOUT))[1] == b"up\n"
        running.send(Kind.SIGNAL, signum=signal.SIGUSR1, everyone=False)
        assert unpack_output(running.next(Kind.STDOUT))[1] == b"rank\n"
        assert unpack_message(running.next(Kind.EXITED))["code"] == 4


def test_workers_of_another_host_inherit_what_the_agent_has() -> None:
    with agent() as running:
        workers = [{"rank": 0, "environment": {"OF_RANK": "0"}}]
        command = ["sh", "-c", "echo $OF_AGENT $OF_JOB $OF_RANK $PATH $NONE"]
        environment = {"OF_JOB": "j", "OF_AGENT": "replaced"}
        running.send(
            Kind.START, cwd="/", command=command, environment=environment, inherits=True, listen={}, workers=workers,
            appended={"PATH": "/last", "NONE": "/only"},
        )  # fmt: skip
        told = f"replaced j 0 {os.environ['PATH']}:/last /only\n"
        assert unpack_output(running.next(Kind.STDOUT))[1] == told.encode()
        assert unpack_message(running.next(Kind.EXITED))["code"] == 0


def test_stdin_goes_no_further_than_the_pipe_of_a_rank_and_every_byte_is_told() -> None:
    program = "head -c 1000 > /dev/null; read line; sleep 600"
    with agent() as running:
        workers = [{"rank": 0, "environment": {}, "stdin": True}]
        running.send(
            Kind.START, cwd="/", command=["sh", "-c", program], environment={"PATH": os.environ["PATH"]},
            inherits=False, listen={}, workers=workers
        )  # fmt: skip
        assert running.process.stdin is not None
        running.process.stdin.write(pack_output(Kind.STDIN, 0, b"x" * WINDOW_BYTES))
        taken = 0
        while taken < WINDOW_BYTES // 4:
            taken += unpack_message(running.next(Kind.TAKEN))["count"]
        running.process.stdin.write(pack_output(Kind.STDIN, 0, b""))
        running.send(Kind.ASK, id=1, what="clock")
        running.next(Kind.ANSWER)  # the agent goes on while the pipe is full
        assert taken < WINDOW_BYTES
        running.send(Kind.END, patience_s=0.0, grace_s=0.0)
        assert unpack_message(running.next(Kind.EXITED))["code"] < 0


def test_a_rank_that_closed_its_stdin_is_told_of() -> None:
    with agent() as running:
        workers = [{"rank": 0, "environment": {}, "stdin": True}]
        command = ["sh", "-c", "exec <&-; echo closed; sleep 600"]
        environment = {"PATH": os.environ["PATH"]}
        running.send(
            Kind.START, cwd="/", command=command, environment=environment, inherits=False, listen={}, workers=workers
        )
        running.next(Kind.STDOUT)
        assert running.process.stdin is not None
        running.process.stdin.write(pack_output(Kind.STDIN, 0, b"x"))
        assert unpack_message(running.next(Kind.TAKEN)) == {"rank": 0, "count": None}

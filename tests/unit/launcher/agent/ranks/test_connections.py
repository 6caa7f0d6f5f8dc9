"""An agent tells ranks that run by themselves from those that communicate, in whatever way."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen
from types import SimpleNamespace
from typing import Any, Final

import pytest

from hvdlite.blackbox.format import HEAD, MARK, NBYTES, Phase
from hvdlite.launcher.agent.ranks.connections import Connections

_PYTHON: Final = (sys.executable, "-S", "-c")
_READY: Final = "\nprint(ports, flush=True)\ninput()"
_LISTEN: Final = "import socket\nlistener = socket.create_server(('{}', 0))\nports = listener.getsockname()[1]"
_CONNECT: Final = "import socket, sys\nend = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\nports = 0"
_MAP: Final = "import mmap, os, sys\nmapped = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=1)\nports = 0"
_BY_ITSELF: Final = _LISTEN.format("127.0.0.1") + "\nend = socket.create_connection(('127.0.0.1', ports))"


class Ranks:
    """Processes of this host, one for each rank, that run until the test is over."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.connections = Connections(least_s=0.0)
        self.memories: list[bytearray] = []

    def start(self, *command: str, environment: Mapping[str, str] | None = None) -> str:
        """Starts the next rank. Returns the line by which it says that it is ready."""
        environment = {**os.environ, "HVDLITE_JOB": "outer", **(environment or {})}
        process = Popen(command, stdin=PIPE, stdout=PIPE, text=True, start_new_session=True, env=environment)
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        self.memories.append(bytearray(NBYTES))
        worker: Any = SimpleNamespace(rank=len(self.memories) - 1, process=process)
        self.connections.begin(worker, self.memories[-1], 100.0)  # type: ignore[arg-type]
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def look(self) -> list[bool]:
        """Looks, and returns of each rank whether it ran alone."""
        self.connections.look(100.0)
        return [self.connections.end(rank, 100.0) for rank in range(len(self.memories))]


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with ExitStack() as stack:
        yield Ranks(stack)


@pytest.mark.parametrize(
    ("program", "is_alone"),
    [
        ("ports = 0", True),
        (_LISTEN.format("127.0.0.1"), True),  # for a helper of its own
        (_BY_ITSELF, True),
        (_LISTEN.format("0.0.0.0"), False),
        (_LISTEN.format("::").replace("0))", "0), family=socket.AF_INET6)"), False),
    ],
)
@pytest.mark.parametrize("start", [_PYTHON, ("sh", "-c", '"$@"; true', "sh", *_PYTHON), ("setsid", "-w", *_PYTHON)])
def test_a_rank_is_alone_unless_it_listens_for_others(
    ranks: Ranks, start: tuple[str, ...], program: str, is_alone: bool
) -> None:
    ranks.start(*start, program + _READY)
    assert ranks.look() == [is_alone]


def test_only_python_counts_that_ran_for_long_enough(ranks: Ranks) -> None:
    ranks.start("sh", "-c", "echo; read _")
    assert ranks.look() == [False]
    ranks.connections = Connections(least_s=600.0)
    ranks.start(*_PYTHON, "ports = 0" + _READY)
    ranks.memories.pop(0)
    ranks.connections.look(700.0)
    assert not ranks.connections.end(1, 700.0)


def test_ranks_that_are_connected_are_not_alone(ranks: Ranks) -> None:
    accept = "\nprint(ports, flush=True)\nend = listener.accept()[0]\nend.send(b'.')\ninput()"
    port = ranks.start(*_PYTHON, _LISTEN.format("127.0.0.1") + accept)
    ranks.start(*_PYTHON, _CONNECT + "\nend.recv(1)" + _READY, port)  # once the other has accepted
    assert ranks.look() == [False, False]


@pytest.mark.parametrize(
    ("name", "is_alone"),
    [
        ("libmpi.so.40.30.4", False),
        ("libmpi_gnu_123.so.12", False),
        ("libmpi-0f3a.so.12", False),
        ("libmpir.so", True),  # arithmetic
    ],
)
def test_a_library_of_mpi_is_a_sign(ranks: Ranks, tmp_path: Path, name: str, is_alone: bool) -> None:
    (tmp_path / name).write_bytes(b"x")
    ranks.start(*_PYTHON, _MAP + _READY, str(tmp_path / name))
    assert ranks.look() == [is_alone]


def test_a_job_within_the_job_is_a_sign(ranks: Ranks) -> None:
    inner = 'HVDLITE_JOB=inner exec "$@"'
    ranks.start("sh", "-c", f"({inner}); true", "sh", *_PYTHON, "ports = 0" + _READY)
    assert ranks.look() == [False]


def test_a_connection_with_the_port_where_ranks_meet_is_a_sign_when_it_is_over(ranks: Ranks) -> None:
    meet = "\nother = listener.accept()[0]\nend.close()\nother.close()\nlistener.close()"
    port = ranks.start(*_PYTHON, _BY_ITSELF + meet + _READY)
    for environment, is_alone in (({}, True), ({"MASTER_PORT": port}, False)):
        ranks.connections, ranks.memories = Connections(least_s=0.0), []
        ranks.start(*_PYTHON, "ports = 0" + _READY, environment=environment)
        assert ranks.look() == [is_alone]


def test_a_black_box_that_was_begun_ends_the_looks(ranks: Ranks) -> None:
    ranks.start(*_PYTHON, "ports = 0" + _READY)
    ranks.start(*_PYTHON, "ports = 0" + _READY)
    HEAD.pack_into(ranks.memories[1], 0, MARK, 7, 1, 2, Phase.OUTSIDE)
    assert ranks.look() == [False, False]


def test_a_rank_that_begins_late_is_not_alone(ranks: Ranks) -> None:
    ranks.start(*_PYTHON, "ports = 0" + _READY)
    ranks.connections.look(100.0)
    HEAD.pack_into(ranks.memories[0], 0, MARK, 7, 0, 2, Phase.JOINING)
    assert not ranks.connections.end(0, 101.0)

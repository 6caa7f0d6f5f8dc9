"""The socket of a running hvdrun: who may ask, what is answered, and that nothing there disturbs the job."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from hvdlite.launcher.agents.link import AgentLink, Question
from hvdlite.launcher.monitor import folder
from hvdlite.launcher.monitor.client import Client, JobEnded, running
from hvdlite.launcher.monitor.monitor import Monitor
from hvdlite.launcher.stream.loop import Loop
from tests.harness.patience import PATIENCE_S, until
from tests.harness.users import NOBODY, in_child, needs_root
from tests.hosts import nodes
from tests.launcher.hvdrun import run, started

_TRAINING = """
import sys, time
import numpy as np
import hvdlite as hvd
from pathlib import Path
hvd.init()
while True:
    hvd.allreduce(np.ones(1000, np.float32), name="weights")
    over = hvd.allreduce(np.array([float(Path(sys.argv[1]).exists())]), name="is over")
    if over.any():
        break
    time.sleep(0.01)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the sockets of jobs that the test starts."""
    (above := tmp_path / "run").mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(above))
    return above / "hvdlite"


def _command(folder: Path) -> list[str]:
    (script := folder / "train.py").write_text(_TRAINING)
    return [sys.executable, str(script), str(folder / "over")]


def _jobs(place: Path, count: int = 1) -> list[Client]:
    """Connections to the jobs in ``place``, once ``count`` are there."""
    found: list[Client] = []

    def have_come() -> bool:
        for client in found:
            client.close()
        found[:] = _in(place)
        return len(found) >= count

    until(have_come)
    return found


def _in(place: Path) -> list[Client]:
    """Connections to the jobs that run in ``place`` now."""
    found = []
    for client in running({"XDG_RUNTIME_DIR": str(place.parent)}):
        if list(place.glob(f"{client.pid}-*")):
            found.append(client)
        else:  # a job of another folder of this user
            client.close()
    return found


def _end(folder: Path, process: subprocess.Popen[bytes]) -> None:
    (folder / "over").touch()
    assert process.wait(PATIENCE_S) == 0


def _names(client: Client) -> dict[int, str]:
    """The first tensor of each rank's latest batch."""
    ranks = [rank for line in client.ask("status") for rank in line["answer"]]
    return {rank["rank"]: rank["last"]["name"] for rank in ranks if "last" in rank}


def _ask_on(client: Client) -> None:
    while True:
        client.ask("status")


def _connected(place: Path) -> socket.socket:
    (name,) = os.listdir(place)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENCE_S)
    sock.connect(str(place / name))
    return sock


def test_the_job_and_the_status_of_each_rank_are_answered(place: Path, tmp_path: Path) -> None:
    with started("-np", "3", *_command(tmp_path)) as hvdrun:
        (client,) = _jobs(place)
        with client:
            job = client.job()
            assert (client.pid, job.size, job.hosts) == (hvdrun.pid, 3, {"localhost": (0, 1, 2)})
            until(lambda: set(_names(client).values()) <= {"weights", "is over"} and len(_names(client)) == 3)

            def answer() -> dict[str, object]:
                (line,) = client.ask("status", ranks=[1])
                assert [rank["rank"] for rank in line["answer"]] == line["ranks"] == [1]
                return dict(line["answer"][0])

            until(lambda: bool((answer().get("rates") or {}).get("steps_per_s")))  # type: ignore[attr-defined]
            assert answer()["quantities"]["memory_bytes"] > 1 << 20  # type: ignore[index]
            assert client.ask("free_ports") == [{"error": "there is no such question"}]
            (tmp_path / "over").touch()
            with pytest.raises(JobEnded) as ended:
                _ask_on(client)
            assert ended.value.code == 0
    assert not place.exists()


@needs_root
def test_another_user_is_refused(place: Path, tmp_path: Path) -> None:
    def call(path: str) -> str:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(PATIENCE_S)
            try:
                sock.connect(path)
                sock.sendall(b'{"what": "job"}\n')
                return sock.recv(1 << 16).decode()
            except ConnectionError:
                return ""

    with started("-np", "1", *_command(tmp_path)) as hvdrun:
        for client in _jobs(place):
            client.close()
        (name,) = os.listdir(place)
        assert (place.stat().st_mode & 0o777, (place / name).stat().st_mode & 0o777) == (0o700, 0o600)
        with pytest.raises(PermissionError):
            in_child(call, str(place / name), uid=NOBODY)
        for above in place.parents[: len(place.parents) - 2]:
            above.chmod(0o711)
        for path in (place / name, place):  # as if files did not help
            path.chmod(0o777)
        assert in_child(call, str(place / name), uid=NOBODY) == ""
        assert '"size": 1' in in_child(call, str(place / name))
        _end(tmp_path, hvdrun)


def test_two_jobs_are_found_and_told_apart(place: Path, tmp_path: Path) -> None:
    with started("-np", "1", *_command(tmp_path)) as one, started("-np", "2", *_command(tmp_path)) as other:
        clients = _jobs(place, 2)
        assert {client.pid: client.job().size for client in clients} == {one.pid: 1, other.pid: 2}
        for client in clients:
            client.close()
        _end(tmp_path, one)
        assert other.wait(PATIENCE_S) == 0
    assert not place.exists()


_NESTED = b"[" * 970 + b"]" * 970
_NONSENSE = (
    *(b"\0\xff garbage\n", b"[]\n", b"{}\n" * 9, b"x" * (1 << 20), b"[" * 9999, b'"job"\n', b"NaN\n", b"\n"),
    *(
        b'{"what": %s}\n' % what
        for what in (b"[]", b"{}", b"7", b"null", b"true", _NESTED, b"[" * 9999, b'"\xed\xa0\x80')
    ),
    *(
        b'{"what": "status", "ranks": %s}\n' % ranks
        for ranks in (
            b"7",
            b'"all"',
            b"{}",
            b"[[]]",
            b"[0.0]",
            b"[true]",
            b'["0"]',
            b"[-Infinity]",
            _NESTED,
            b"[" * 999,
        )
    ),
    *(b'{"what": "stacks", "all": %s}\n' % flag for flag in (b"1", b"null", b"[]", _NESTED, b'"yes"')),
)
_UNUSUAL = (
    b'{"what": "\\ud800"}\n',
    b'{"what": "free_ports", "ranks": [0]}\n',
    b'{"what": "status", "ranks": [0, -1, 99999999999999999999]}\n',
    b'{"what": "status", "id": [], "kind": 3, "more": {"ranks": 7}, "all": false}\n',
    b'{"what": [], "what": "status"}\n',
)


def test_who_sends_nonsense_is_hung_up_on_and_nobody_else_is(place: Path, tmp_path: Path) -> None:
    with started("-np", "1", *_command(tmp_path)) as hvdrun:
        (client,) = _jobs(place)
        with client:
            for sent in _NONSENSE:
                with _connected(place) as sock, suppress(ConnectionError):
                    sock.sendall(sent)
                    sock.shutdown(socket.SHUT_WR)
                    assert sock.recv(1) == b"", sent[:80]
                assert client.job().size == 1, sent[:80]
            for sent in _UNUSUAL:
                with _connected(place) as sock:
                    sock.sendall(sent)
                    lines = sock.makefile("rb")
                    assert json.loads(lines.readline()).keys() <= {"host", "ranks", "answer", "error"}, sent
                    assert json.loads(lines.readline()) == {"done": True}, sent
            assert [rank["rank"] for line in client.ask("status") for rank in line["answer"]] == [0]
        _end(tmp_path, hvdrun)


def test_those_who_do_not_read_do_not_disturb_the_job_or_others(place: Path, tmp_path: Path) -> None:
    with started("-np", "2", *_command(tmp_path)) as hvdrun:
        (client,) = _jobs(place)
        with client:
            silent = [_connected(place) for _ in range(10)]
            for number, sock in enumerate(silent):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                sock.sendall(b'{"what": "status"}\n' if number % 2 else b'{"what"')
            assert client.job().size == 2
            _end(tmp_path, hvdrun)
        for sock in silent:
            sock.close()


def test_too_many_are_turned_away_and_the_first_ones_are_served(place: Path, tmp_path: Path) -> None:
    with started("-np", "1", *_command(tmp_path)) as hvdrun:
        (client,) = _jobs(place)
        with client:
            client.job()
            crowd = [_connected(place) for _ in range(40)]
            with suppress(ConnectionError):
                assert crowd[-1].recv(1) == b""
            assert client.job().size == 1
            for sock in crowd:
                sock.close()
            _end(tmp_path, hvdrun)


def test_the_socket_of_a_killed_hvdrun_is_removed_by_the_next(place: Path, tmp_path: Path) -> None:
    with started("-np", "1", *_command(tmp_path)) as hvdrun:
        for client in _jobs(place):
            client.close()
        hvdrun.send_signal(signal.SIGKILL)
        hvdrun.wait(PATIENCE_S)
        (left,) = os.listdir(place)
        assert _in(place) == []
    ended = run("-np", "1", "sh", "-c", f"ls {place}")
    assert ended.returncode == 0
    assert left not in ended.stdout
    assert len(ended.stdout.split()) == 1
    assert not place.exists()


@pytest.fixture
def unusual(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A path of a folder for sockets that cannot be used."""
    above = tmp_path / "above"
    above.mkdir(0o700)
    kind = request.param
    if kind == "a link":
        (tmp_path / "elsewhere").mkdir(0o700)
        (above / "hvdlite").symlink_to(tmp_path / "elsewhere")
    elif kind == "open to others":
        (above / "hvdlite").mkdir()
        (above / "hvdlite").chmod(0o755)
    elif kind == "a file":
        (above / "hvdlite").touch()
    elif kind == "another user's":
        (above / "hvdlite").mkdir(0o700)
        os.chown(above / "hvdlite", NOBODY, NOBODY)
    return above if kind != "nowhere" else tmp_path / "nothing"


@needs_root
@pytest.mark.parametrize("unusual", ["a link", "open to others", "a file", "another user's", "nowhere"], indirect=True)
def test_a_folder_that_is_not_private_is_not_used_and_another_is(unusual: Path, tmp_path: Path) -> None:
    (temporary := tmp_path / "tmp").mkdir()
    program = f"import os; print([name for name in os.listdir('{temporary}/hvdlite-{os.geteuid()}')])"
    where = {"XDG_RUNTIME_DIR": str(unusual), "TMPDIR": str(temporary)}
    ended = run("-np", "1", sys.executable, "-S", "-c", program, **where)
    assert (ended.returncode, ended.stderr) == (0, "")
    if not Path(f"/run/user/{os.geteuid()}").exists():
        assert ".sock" in ended.stdout


def test_a_long_path_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (above := tmp_path / ("x" * 150)).mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(above))
    with started("-np", "1", *_command(tmp_path)) as hvdrun:
        (client,) = _jobs(above / "hvdlite")
        with client:
            assert client.job().command[1] == str(tmp_path / "train.py")[:200]
        _end(tmp_path, hvdrun)


def test_a_folder_that_hands_its_group_down_is_private_too(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(0o700)
    (tmp_path / "run").chmod(0o2700)
    os.close(folder.make({"XDG_RUNTIME_DIR": str(tmp_path / "run")}))
    assert (tmp_path / "run" / "hvdlite").stat().st_mode & 0o7777 == 0o2700


def test_a_process_that_lives_keeps_its_socket(tmp_path: Path) -> None:
    place = os.open(tmp_path, os.O_RDONLY)
    for pid in (1, 2**31 - 1):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(folder.address(place, f"{pid}-0.sock"))
    (tmp_path / "other.sock").touch()
    folder.remove_stale(place)
    assert sorted(os.listdir(tmp_path)) == ["1-0.sock", "other.sock"]
    os.close(place)


def test_those_who_neither_ask_nor_read_are_hung_up_on_in_time(place: Path) -> None:
    loop = Loop()
    large = {"text": "x" * (1 << 22)}
    monitor = Monitor(loop, {}, lambda: large)
    assert monitor.deadline is None
    idle, deaf = _connected(place), _connected(place)
    for _ in range(2):
        loop.turn(0)
    deaf.sendall(b'{"what": "job"}\n')
    loop.turn(0)
    monitor.tick(time.monotonic())
    due = monitor.deadline
    assert due is not None
    assert time.monotonic() < due < time.monotonic() + 60
    monitor.tick(due + 60)
    assert monitor.deadline is None
    assert idle.recv(1) == b""
    received = sum(map(len, iter(lambda: deaf.recv(1 << 20), b"")))
    assert 0 < received < len(large["text"])
    monitor.close()
    loop.close()
    assert not place.exists()
    for sock in (idle, deaf):
        sock.close()


def test_an_agent_that_does_not_answer_holds_nobody_up(place: Path) -> None:
    class Silent:
        host = "far"

        def ask(self, what: object) -> Question:
            return Question()

    loop = Loop()
    monitor = Monitor(loop, {cast(AgentLink, Silent()): (0, 1)}, dict)
    with _connected(place) as sock:
        loop.turn(0)
        sock.sendall(b'{"what": "status", "ranks": [1, 5]}\n')
        loop.turn(time.monotonic() + PATIENCE_S)
        monitor.tick(time.monotonic())
        loop.turn(0)
        monitor.tick(time.monotonic() + 60)
        line, done, _ = sock.recv(1 << 16).split(b"\n")
        assert json.loads(line) == {"host": "far", "ranks": [1], "error": "no answer within 20 s"}
        assert json.loads(done) == {"done": True}
    monitor.close()
    loop.close()


def test_a_job_of_nodes_has_its_socket_at_node_0(place: Path, tmp_path: Path) -> None:
    with nodes.job(*_command(tmp_path)) as (first, second):
        (client,) = _jobs(place)
        with client:
            assert client.pid == first.pid
            assert client.job().size == 2
            until(lambda: len(_names(client)) == 2)
        (tmp_path / "over").touch()
        assert (first.rest().code, second.rest().code) == (0, 0)
    assert not place.exists()


def test_a_job_of_run_can_be_asked_too(place: Path, tmp_path: Path) -> None:
    program = f"import hvdlite, os; hvdlite.run(os.system, ({shlex.join(_command(tmp_path))!r},), np=2)"
    with subprocess.Popen([sys.executable, "-c", program]) as caller:
        (client,) = _jobs(place)
        with client:
            assert client.job().size == 2
        (tmp_path / "over").touch()
        assert caller.wait(PATIENCE_S) == 0
    assert not place.exists()

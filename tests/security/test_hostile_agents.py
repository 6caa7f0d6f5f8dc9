"""Agents that lie: whatever comes through the connection costs the job, says so in words, and nothing else."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hvdlite.host.machine import describe_machine
from hvdlite.launcher.agent.software import examine
from hvdlite.launcher.agents.agents import Agents
from hvdlite.launcher.spawners import SshOptions
from hvdlite.launcher.spawners.boot import boot_here
from hvdlite.launcher.stream import messages
from hvdlite.launcher.stream.frames import GREETING, pack
from hvdlite.launcher.stream.messages import Hello, encode
from hvdlite.launcher.stream.questions import Clock
from hvdlite.launcher.where.hosts import parse_hosts
from tests.launcher.hvdrun import run
from tests.launcher.samples import EXITED, KIND_OF

# Answers questions as an agent would that shares this machine, but for those in $ANSWERS. After START it sends what the
# file of $LIES holds.
PROGRAM = """
import json, os
from hvdlite.launcher.agent.answers import ANSWERS
from hvdlite.launcher.stream.frames import GREETING
from hvdlite.launcher.stream.messages import Answer, Ask, Decoder, Hello, Start, encode
os.write(1, GREETING + encode(Hello.describe()))
decoder = Decoder()
lies = json.loads(os.environ.get("ANSWERS", "{}"))
while data := os.read(0, 65536):
    for message in decoder.feed(data):
        if isinstance(message, Ask):
            answer = lies.get(message.what.lower()) or ANSWERS[message.what](message.question)
            os.write(1, encode(Answer(message.id, answer, "")))
        elif isinstance(message, Start):
            os.write(1, open(os.environ["LIES"], "rb").read())
"""
# Started as hvdrun starts an agent, which takes a third of the time that importing the package does.
BOOTED = [word.replace("from hvdlite.launcher.agent.agent import main\nmain()\n", PROGRAM) for word in boot_here()]
assert PROGRAM in "".join(BOOTED)
LIAR = f"#!/bin/sh\nexec {shlex.join([sys.executable, *BOOTED])}\n"


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for ssh, first on PATH, to be written."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LIES", str(tmp_path / "lies"))
    path = tmp_path / "ssh"
    path.touch(0o755)
    return path


def exited(**lies: Any) -> bytes:
    return encode(EXITED._replace(**lies))


def json_of(kind: type[messages.Message], text: bytes) -> bytes:
    return pack(KIND_OF[kind], text)


@pytest.mark.parametrize(
    ("lies", "words"),
    [
        (encode(messages.Stdout(0, b"forged\n")), "rank 0 is not one of its own"),
        (encode(messages.Stderr(4_000_000_000, b"x\n")), "rank 4000000000 is not one of its own"),
        (exited(rank=0), "rank 0 is not one of its own"),
        (exited(code=7, agent=0), "no valid 'agent'"),
        *((exited(last=last), "no valid 'last'") for last in ("text", ["x"] * 21, [7])),
        *(
            (exited(spent=spent), "no valid 'spent'")
            for spent in ([1.0] * 7, {}, [1.0] * 7 + [-1.0], [float("inf")] * 8, [float("nan")] * 8, ["1"] * 8)
        ),
        (exited(ended_by=[1]), "no valid 'ended_by'"),
        (encode(messages.Failed(1, "x" * 1_000_000)), "no valid 'reason'"),
        (encode(messages.Started(-1, 1)), "no valid 'rank'"),
        (json_of(messages.Exited, b'{"rank": Infinity}'), "no valid 'rank'"),
        (json_of(messages.Exited, b'{"rank": 1}'), "no valid 'pid'"),
        (encode(messages.Stopped(1, "\33[2J")), "no valid 'pid'"),  # type: ignore[arg-type]
        (encode(messages.Signalled(9)), "no valid 'signum'"),
        *((encode(messages.Open(channel, "x")), "no valid 'channel'") for channel in (-1, 1 << 32, 1 << 80)),
        (encode(messages.Close(1)) + encode(messages.Lease(1.0, None)), "the message Lease is for agents"),
        (json_of(messages.Open, b"[" * 100_000), "a frame holds no JSON"),
        (json_of(messages.Answer, b'{"id": 1, "answer": %s}' % (b"[" * 970 + b"]" * 970)), "a frame holds no JSON"),
        (json_of(messages.Hello, b"{}"), "the message Hello has no valid 'protocol'"),
        (b"\xff" * 5, "not a frame"),
    ],
)
def test_a_lie_ends_the_job_and_is_reported(ssh: Path, tmp_path: Path, lies: bytes, words: str) -> None:
    ssh.write_text(LIAR)
    (tmp_path / "lies").write_bytes(lies)
    ended = run("-H", "localhost:1,liar:1", "sleep", "600")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "rank 1 on liar was lost: its agent sent an invalid message" in ended.stderr
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


NIC = dict(name="eth0", is_up=True, is_loopback=False, is_virtual=False, mtu=1500, speed_mbps=0)
FAR = {"network": "far", "interfaces": [{**NIC, "addresses": ["192.0.2.9/24"]}]}
UP = {"ports": {"192.0.2.9": 4000}, "problems": {}}


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"network": {**FAR, "interfaces": [{**NIC, "addresses": [], "mtu": float("inf")}]}}, "no valid 'mtu'"),
        (
            {"network": {**FAR, "interfaces": [{**NIC, "addresses": [], "speed_mbps": 10**400}]}},
            "no valid 'speed_mbps'",
        ),
        ({"network": FAR, "listen": [1]}, "no valid 'ports'"),
        ({"network": FAR, "listen": {"ports": {}, "problems": {}}}, "on which port of 192.0.2.9 it listens"),
        ({"network": FAR, "listen": {**UP, "ports": {"192.0.2.9": 1 << 80}}}, "no valid 'ports'"),
        ({"network": FAR, "listen": UP, "dial": {"results": []}}, "reports 0"),
        ({"network": FAR, "listen": UP, "dial": {"results": [7]}}, "no valid 'results'"),
        ({"network": FAR, "listen": UP, "dial": {"results": [{"rtt_us": "soon"}]}}, "no valid 'rtt_us'"),
        ({"network": FAR, "listen": UP, "dial": {"results": [{"rtt_us": 10**400}]}}, "no valid 'rtt_us'"),
        ({"network": FAR, "listen": UP, "dial": {"results": [{"problem": "{detail.x}"}]}}, "no valid 'problem'"),
        ({"network": FAR, "listen": UP, "dial": {"results": [{"problem": "other host", "host": 9}]}}, "number 9"),
    ],
)
def test_an_answer_of_the_wrong_shape_names_the_host(
    ssh: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], words: str
) -> None:
    ssh.write_text(LIAR)
    monkeypatch.setenv("ANSWERS", json.dumps(answers))
    ended = run("-H", "localhost:1,liar:1", "sleep", "600")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "liar" in ended.stderr
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


GPU = {"name": "\33[2Jcleared", "memory_mib": "1", "driver": "1"}


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"network": [FAR]}, "no valid 'interfaces'"),
        ({"machine": "fast"}, "no valid 'kernel'"),
        ({"machine": {**describe_machine(), "cores": "many"}}, "no valid 'cores'"),
        ({"machine": {**describe_machine(), "memory": 10**400}}, "no valid 'memory'"),
        ({"machine": {**describe_machine(), "load": float("nan")}}, "no valid 'load'"),
        ({"machine": {**describe_machine(), "files": -1}}, "no valid 'files'"),
        ({"machine": {**describe_machine(), "gpus": [GPU, {}]}}, "no valid 'name'"),
        ({"software": [1]}, "no valid 'problem'"),
        ({"software": {"hvdlite": "0.1.0"}}, "no valid 'problem'"),
        ({"software": {"hvdlite": "0.1.0", "problem": ""}}, "no valid 'python'"),
        ({"software": {"problem": ["none"]}}, "no valid 'problem'"),
        ({"software": {**examine(), "without_cuda": 7}}, "no valid 'without_cuda'"),
        ({"clock": "noon"}, "no valid 'clock'"),
        ({"clock": 10**400}, "no valid 'clock'"),
    ],
)
def test_a_doctor_who_is_lied_to_says_by_whom_and_examines_the_others(
    ssh: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], words: str
) -> None:
    ssh.write_text(LIAR)
    monkeypatch.setenv("ANSWERS", json.dumps(answers))
    ended = run("doctor", "-H", "localhost,liar")
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "localhost: connected" in ended.stdout
    assert "problem: liar: no rank can be started: the" in ended.stdout
    assert words in " ".join(ended.stdout.split())


def test_nothing_that_an_agent_tells_a_doctor_steers_the_terminal(ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh.write_text(LIAR)
    monkeypatch.setenv("ANSWERS", json.dumps({"machine": {**describe_machine(), "gpus": [GPU]}}))
    ended = run("doctor", "-H", "liar")
    assert "1 × ?[2Jcleared (1 MiB, driver 1)" in ended.stdout
    assert "\33" not in ended.stdout


@pytest.mark.parametrize(
    ("rank", "nbytes", "words"),
    [
        (1, 1, "has taken more of stdin than it got"),
        (1, -1, "no valid 'nbytes'"),
        (1, 10**30, "no valid 'nbytes'"),
        (0, 1, "rank 0 is not one of its own"),
        (1, [1], "no valid 'nbytes'"),
    ],
)
def test_what_a_rank_took_of_stdin_is_checked(ssh: Path, tmp_path: Path, rank: int, nbytes: Any, words: str) -> None:
    ssh.write_text(LIAR)
    (tmp_path / "lies").write_bytes(encode(messages.Taken(rank, nbytes)))
    ended = run("-H", "localhost:1,liar:1", "--stdin", "1", "sleep", "600")
    assert ended.returncode == 1
    assert "rank 1 on liar was lost: its agent sent an invalid message: " in ended.stderr
    assert words in ended.stderr


def test_a_line_without_an_end_is_cut(ssh: Path, tmp_path: Path) -> None:
    (tmp_path / "hello").write_bytes(GREETING + encode(Hello.describe()))
    ssh.write_text(f"#!/bin/sh\nhead -c 1000000 /dev/zero >&2\ncat '{tmp_path}/hello'\nexec cat > /dev/null\n")
    said: list[str] = []
    with Agents(SshOptions(), said.append) as agents:
        agents.connect(parse_hosts("far"))
        agents.loop.turn(time.monotonic() + 1.0)
    assert max(map(len, said)) < 2_000_000
    assert len(said) > 1


def test_a_question_to_an_agent_that_is_gone_is_answered_at_once(ssh: Path, tmp_path: Path) -> None:
    (tmp_path / "hello").write_bytes(GREETING + encode(Hello.describe()))
    ssh.write_text(f"#!/bin/sh\ncat '{tmp_path}/hello'\n")
    with Agents(SshOptions(), lambda line: None) as agents:
        agents.connect(parse_hosts("far"))
        while not agents.links["far"].is_over:
            agents.loop.turn(time.monotonic() + 5.0)
        question = agents.links["far"].ask(Clock())
        assert (question.is_done, question.error) == (True, "its agent has ended")

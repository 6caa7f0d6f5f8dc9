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

from hvdlite.launcher.agent.machine import describe_machine
from hvdlite.launcher.agent.software import examine
from hvdlite.launcher.agents.agents import Agents
from hvdlite.launcher.hosts import parse_hosts
from hvdlite.launcher.spawners import SshOptions
from hvdlite.launcher.spawners.boot import boot_here
from hvdlite.launcher.stream.frames import GREETING, Kind, pack, pack_message, pack_output
from hvdlite.launcher.stream.hello import Hello
from tests.launcher.hvdrun import run

# Answers questions as an agent would that shares this machine, but for those in $ANSWERS. After START it sends what the
# file of $LIES holds.
PROGRAM = """
import json, os
from hvdlite.launcher.agent.answers import ANSWERS
from hvdlite.launcher.stream.frames import GREETING, FrameReader, Kind, pack_message, unpack_message
from hvdlite.launcher.stream.hello import Hello
os.write(1, GREETING + pack_message(Kind.HELLO, **Hello.describe().fields()))
reader = FrameReader()
lies = json.loads(os.environ.get("ANSWERS", "{}"))
while data := os.read(0, 65536):
    for kind, payload in reader.feed(data):
        if kind is Kind.ASK:
            question = unpack_message(payload)
            answer = lies.get(question["what"]) or ANSWERS[question["what"]](question)
            os.write(1, pack_message(Kind.ANSWER, id=question["id"], answer=answer))
        elif kind is Kind.START:
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


@pytest.mark.parametrize(
    ("lies", "words"),
    [
        (pack_output(Kind.STDOUT, 0, b"forged\n"), "rank 0 is not one of its own"),
        (pack_output(Kind.STDERR, 4_000_000_000, b"x\n"), "rank 4000000000 is not one of its own"),
        (
            pack_message(
                Kind.EXITED, rank=0, pid=1, code=0, time=0.0, is_oom=False, ended_by=None, agent="", last=[], spent=None
            ),
            "rank 0 is not one of its own",
        ),
        (
            pack_message(
                Kind.EXITED, rank=1, pid=1, code=7, time=0.0, is_oom=False, ended_by=None, agent=0, last=[], spent=None
            ),
            "a text of at most",
        ),
        *(
            (
                pack_message(
                    Kind.EXITED,
                    rank=1,
                    pid=1,
                    code=-9,
                    time=0.0,
                    is_oom=False,
                    ended_by=None,
                    agent="",
                    last=last,
                    spent=None,
                ),
                words,
            )
            for last, words in (
                ("text", "a list of at most 20 texts"),
                (["x"] * 21, "a list of at most 20 texts"),
                ([7], "a text of at most"),
            )
        ),
        *(
            (
                pack_message(
                    Kind.EXITED,
                    rank=1,
                    pid=1,
                    code=0,
                    time=0.0,
                    is_oom=False,
                    ended_by=None,
                    agent="",
                    last=[],
                    spent=spent,
                ),
                words,
            )
            for spent, words in (
                ([1.0] * 7, "a rank's times are missing"),
                ({}, "a rank's times are missing"),
                ([1.0] * 7 + [-1.0], "a rank's times are no times"),
                ([float("inf")] * 8, "a rank's times are no times"),
                ([float("nan")] * 8, "a rank's times are no times"),
                (["1"] * 8, "a rank's times are no times"),
            )
        ),
        (pack_message(Kind.FAILED, rank=1, reason="x" * 1_000_000), "a text of at most"),
        (pack_message(Kind.STARTED, rank=-1, pid=1), "rank -1 is not one of its own"),
        (pack(Kind.EXITED, b'{"rank": Infinity}'), "no valid 'rank'"),
        (pack(Kind.EXITED, b'{"rank": 1}'), "no valid 'code'"),
        (
            pack_message(
                Kind.EXITED, rank=1, pid=1, code=0, time=0.0, is_oom=False, ended_by=[1], agent="", last=[], spent=None
            ),
            "which rank ended another",
        ),
        (pack_message(Kind.STOPPED, rank=1, pid="\33[2J"), "no valid 'pid'"),
        (pack(Kind.OPEN, b"[" * 100_000), "a frame holds no JSON"),
        (pack(Kind.ANSWER, b'{"id": 1, "answer": %s}' % (b"[" * 970 + b"]" * 970)), "a frame holds no JSON"),
        (pack(Kind.HELLO, b"{}"), "hello has no valid 'protocol'"),
        (b"\xff" * 5, "not a frame"),
    ],
)
def test_a_lie_ends_the_job_and_is_told(ssh: Path, tmp_path: Path, lies: bytes, words: str) -> None:
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
        ({"network": FAR, "listen": {**UP, "ports": {"192.0.2.9": 1 << 80}}}, "on which port of 192.0.2.9 it listens"),
        ({"network": FAR, "listen": UP, "dial": {"results": []}}, "reports 0"),
        ({"network": FAR, "listen": UP, "dial": {"results": [7]}}, "reports no result"),
        ({"network": FAR, "listen": UP, "dial": {"results": [{"rtt_us": "soon"}]}}, "no valid 'rtt_us'"),
        ({"network": FAR, "listen": UP, "dial": {"results": [{"rtt_us": 10**400}]}}, "no valid 'rtt_us'"),
        ({"network": FAR, "listen": UP, "dial": {"results": [{"problem": "{detail.x}"}]}}, "unknown problem"),
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
        ({"software": [1]}, "no valid 'software'"),
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
    assert "problem: liar: no rank can be started: the agent's answer has" in ended.stdout
    assert words in " ".join(ended.stdout.split())


def test_nothing_that_an_agent_tells_a_doctor_steers_the_terminal(ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh.write_text(LIAR)
    monkeypatch.setenv("ANSWERS", json.dumps({"machine": {**describe_machine(), "gpus": [GPU]}}))
    ended = run("doctor", "-H", "liar")
    assert "1 × ?[2Jcleared (1 MiB, driver 1)" in ended.stdout
    assert "\33" not in ended.stdout


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"rank": 1, "count": 1}, "has taken more of stdin than it got"),
        ({"rank": 1, "count": -1}, "has taken more of stdin than it got"),
        ({"rank": 1, "count": 10**30}, "has taken more of stdin than it got"),
        ({"rank": 0, "count": 1}, "rank 0 is not one of its own"),
        ({"rank": 1, "count": [1]}, "invalid message"),
        ({"rank": 1}, "invalid message"),
    ],
)
def test_what_a_rank_took_of_stdin_is_checked(ssh: Path, tmp_path: Path, lie: dict[str, Any], words: str) -> None:
    ssh.write_text(LIAR)
    (tmp_path / "lies").write_bytes(pack_message(Kind.TAKEN, **lie))
    ended = run("-H", "localhost:1,liar:1", "--stdin", "1", "sleep", "600")
    assert ended.returncode == 1
    assert "rank 1 on liar was lost: its agent sent an invalid message: " in ended.stderr
    assert words in ended.stderr


@pytest.mark.parametrize("channel", [-1, 1 << 32, 1 << 80])
def test_a_channel_without_a_proper_number_is_refused(ssh: Path, tmp_path: Path, channel: int) -> None:
    ssh.write_text(LIAR)
    last = pack_message(Kind.STARTED, rank=1, pid=1) + pack_message(
        Kind.EXITED,
        rank=1,
        pid=1,
        code=7,
        time=time.monotonic(),
        is_oom=False,
        ended_by=None,
        agent="",
        last=[],
        spent=None,
    )
    (tmp_path / "lies").write_bytes(pack_message(Kind.OPEN, channel=channel, service="HVDLITE_RENDEZVOUS") + last)
    ended = run("-H", "localhost:1,liar:1", "sleep", "600")
    assert ended.returncode == 7, ended.stderr
    assert "rank 1 on liar ended with code 7" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_line_without_an_end_is_cut(ssh: Path, tmp_path: Path) -> None:
    (tmp_path / "hello").write_bytes(GREETING + pack_message(Kind.HELLO, **Hello.describe().fields()))
    ssh.write_text(f"#!/bin/sh\nhead -c 1000000 /dev/zero >&2\ncat '{tmp_path}/hello'\nexec cat > /dev/null\n")
    said: list[str] = []
    with Agents(SshOptions(), said.append) as agents:
        agents.connect(parse_hosts("far"))
        agents.loop.turn(1.0)
    assert max(map(len, said)) < 2_000_000
    assert len(said) > 1


def test_a_question_to_an_agent_that_is_gone_is_answered_at_once(ssh: Path, tmp_path: Path) -> None:
    (tmp_path / "hello").write_bytes(GREETING + pack_message(Kind.HELLO, **Hello.describe().fields()))
    ssh.write_text(f"#!/bin/sh\ncat '{tmp_path}/hello'\n")
    with Agents(SshOptions(), lambda line: None) as agents:
        agents.connect(parse_hosts("far"))
        while not agents.links["far"].is_over:
            agents.loop.turn(5.0)
        question = agents.links["far"].ask("clock")
        assert (question.is_done, question.error) == (True, "its agent has ended")

"""Agents before a job: connected all at once, asked all at once, and gone when nobody needs them any more."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hvdlite.errors import CannotStart
from hvdlite.launcher.agents import agents as module
from hvdlite.launcher.agents.agents import Agents
from hvdlite.launcher.agents.link import AgentLink
from hvdlite.launcher.spawners import SshOptions
from hvdlite.launcher.stream.frames import GREETING
from hvdlite.launcher.stream.messages import Hello, encode
from hvdlite.launcher.stream.questions import Clock, IsFolder, Unpack
from hvdlite.launcher.where.hosts import parse_hosts
from tests.harness import FAKES
from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import still_alive


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def agents(said: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Agents]:
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    with Agents(SshOptions(), said.append) as opened:
        yield opened


def below() -> set[int]:
    """The processes below this one."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_hosts_keep_their_order_and_leave_nothing_behind(agents: Agents) -> None:
    before = below()  # test hosts, where other tests have made some
    agents.connect(parse_hosts("b,localhost,a,b:2"))
    assert list(agents.links) == list(agents.hellos) == ["b", "localhost", "a"]
    assert [link.is_remote for link in agents.links.values()] == [True, False, True]
    own = sorted(below() - before)
    assert len(own) >= 6  # an agent and its guard on each
    agents.close()
    assert still_alive(own, within_s=PATIENCE_S) == []


def test_no_more_than_so_many_handshakes_at_once(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[AgentLink] = []
    at_once = []

    class Counted(AgentLink):
        def __init__(self, *arguments: Any) -> None:
            at_once.append(1 + sum(link.hello is None for link in made))
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(module, "AgentLink", Counted)
    monkeypatch.setattr(module, "MAX_HANDSHAKES", 2)
    agents.connect(parse_hosts("n[1-5]"))
    assert list(agents.links) == ["n1", "n2", "n3", "n4", "n5"]
    assert max(at_once) == 2


def test_those_that_fail_are_named_and_the_others_stay(
    agents: Agents, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REASON_S", PATIENCE_S)  # however long ssh takes to end after its last line
    agents.try_to_connect(parse_hosts("refused,a,denied,noisy"))
    assert list(agents.links) == ["a", "noisy"]
    assert {host: reason[:3] for host, reason in agents.failures.items()} == {"refused": "ssh", "denied": "me@"}
    assert "noisy: noisy will be down on Sunday" in said
    assert not [line for line in said if line.startswith(("refused", "denied"))]  # it is the reason already


def test_a_line_of_ssh_that_does_not_end_is_shown_after_half_a_second_although_the_agent_has_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(touched := tmp_path / "touched")
    (tmp_path / "hello").write_bytes(GREETING + encode(Hello.describe()))
    (ssh := tmp_path / "ssh").touch(0o755)
    ssh.write_text(
        f"#!/bin/sh\necho Touch your key >&2\nread -r _ < '{touched}'\ncat '{tmp_path}/hello'\nexec cat > /dev/null\n"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    shown: dict[str, float] = {}
    with touched.open("r+b", buffering=0) as key:

        def touch(line: str) -> None:
            shown[line] = time.monotonic() - begun
            key.write(b"touched\n")

        with Agents(SshOptions(), touch) as opened:
            begun = time.monotonic()
            opened.connect(parse_hosts("a"))
            assert list(opened.links) == ["a"]
    assert list(shown) == ["a: Touch your key"]
    assert shown["a: Touch your key"] >= 0.5  # until then it may be why ssh ends


def test_the_first_that_fails_ends_a_connect_and_the_others_are_named_too(agents: Agents) -> None:
    with pytest.raises(CannotStart, match=r"cannot start on (refused|denied): .* Nor on (denied|refused)\.$"):
        agents.connect(parse_hosts("a,refused,denied"))


def test_an_agent_that_says_nothing_is_given_up(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELLO_S", 0.0)
    agents.try_to_connect(parse_hosts("a"))
    assert agents.failures == {"a": "it did not answer within 0 s"}
    assert agents.links == {}


def test_all_are_asked_at_once_and_a_wrong_answer_names_its_host(agents: Agents) -> None:
    agents.connect(parse_hosts("a,b"))
    assert agents.ask({"a": IsFolder("/"), "b": IsFolder("/nowhere")}) == {"a": True, "b": False}
    with pytest.raises(CannotStart, match="cannot start on b: no archive for 'x' has come"):
        agents.ask({"a": IsFolder("/"), "b": Unpack("x")})
    with pytest.raises(CannotStart, match=r"cannot start on a: it did not answer 'Clock' within 0 s\."):
        agents.ask({"a": Clock()}, timeout_s=0.0)


def test_a_question_to_an_agent_that_dies_has_an_end(agents: Agents) -> None:
    agents.connect(parse_hosts("a,b"))
    ssh = psutil.Process(agents.links["b"].way.pid)
    below = ssh.children(recursive=True)
    ssh.kill()
    for process in below:  # the agent outlives ssh for a moment, in which it may answer
        process.kill()
    with pytest.raises(CannotStart, match="cannot start on b: ssh was ended by signal 9"):
        agents.ask(dict.fromkeys("ab", IsFolder("/")))


def test_an_agent_that_is_killed_is_named_and_not_the_ssh_that_carried_it(agents: Agents) -> None:
    agents.connect(parse_hosts("a,b"))
    (agent,) = psutil.Process(agents.links["b"].way.pid).children()  # of its guard, which the stand-in for ssh becomes
    agent.kill()
    with pytest.raises(CannotStart, match=r"cannot start on b: its agent was killed by signal 9 \(SIGKILL\), possibly"):
        agents.ask(dict.fromkeys("ab", IsFolder("/")))

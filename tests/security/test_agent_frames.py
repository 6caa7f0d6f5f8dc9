"""hvdrun takes a frame of an agent, or gives that agent up, whatever is in the fields."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.launcher.agents.agents import Agents
from hvdlite.launcher.agents.link import AgentLink, Listener
from hvdlite.launcher.agents.ways import Receiver
from hvdlite.launcher.decisions.plan import Resources, make_plan, place_ranks
from hvdlite.launcher.job.execute import Execution
from hvdlite.launcher.screen.screen import Screen
from hvdlite.launcher.stream import messages
from hvdlite.launcher.stream.frames import GREETING, pack
from hvdlite.launcher.stream.hello import Hello
from hvdlite.launcher.stream.loop import Loop
from hvdlite.launcher.stream.questions import Status
from hvdlite.launcher.where.hosts import Host
from hvdlite.rendezvous.job import Job
from tests.launcher.samples import KIND_OF
from tests.security.damage import WAIT, deformed, fuzzed


class Wire:
    """The way to an agent that has said something."""

    is_remote, is_scheduled, waiting_bytes = True, False, 0

    def __init__(self) -> None:
        self.sent = b""

    def attach(self, loop: Loop, receiver: Receiver) -> None:
        self.receive = receiver.receive

    def send(self, data: bytes) -> None:
        self.sent += data

    def wait(self, timeout_s: float) -> bool:
        return True

    def explain(self) -> str:
        return "it ended"

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Hvdrun:
    """hvdrun with a job of two ranks, both on one host with an agent that lies."""

    def __init__(self) -> None:
        self.loop, self.wire = Loop(), Wire()
        self._null = os.open("/dev/null", os.O_RDWR)
        listener = Listener(lambda *_: None, lambda *_: None, lambda *_: None)
        self.link = AgentLink(Host("far"), cast(Any, self.wire), self.loop, listener)
        agents = cast(Agents, SimpleNamespace(links={"far": self.link}, loop=self.loop, close=lambda: None))
        here = {"far": Resources(2)}
        plan = make_plan(["true"], place_ranks((Host("far", 2),), None, here, None), here, {}, Job.create(), ports=[5])
        self._screen = Screen(self._null, self._null, {}, has_timestamps=False)
        self._execution = Execution(plan, agents, self._screen, None, is_verbose=False)
        self.link.listener = Listener(self._execution._receive, lambda *_: None, self._execution._lose)
        self.wire.receive(GREETING + messages.encode(Hello.describe()))
        self.question = self.link.ask(Status((0, 1)))

    def close(self) -> None:
        self._execution._monitor.close()
        self._execution._input.close()
        self._screen.close(0.0)
        self.loop.close()
        os.close(self._null)

    def receive(self, kind: type[messages.Message], payload: bytes) -> None:
        self.wire.receive(pack(KIND_OF[kind], payload))
        for now in (time.monotonic(), time.monotonic() + 60):
            self._execution._reports.tick(now)
        json.dumps(self._execution._job())
        assert bool(self.link.problem) == self.link.is_over


FRAMES: Mapping[type[messages.Message], list[Any]] = {
    messages.Started: [{"rank": 0, "pid": 7}],
    messages.Failed: [{"rank": 0, "reason": "no such file"}],
    messages.Exited: [
        {
            "rank": 1,
            "pid": 7,
            "code": code,
            "time": 1.5,
            "is_oom": False,
            "ended_by": [0, "it was stopped"],
            "agent": "",
            "last": ["it was in init()"],
            "spent": spent,
            "is_alone": code == 0,
        }
        for code, spent in ((0, [1.0] * 8), (-9, None))
    ],
    messages.Hello: [Hello.describe()._asdict()],
    messages.Answer: [
        {"id": 1, "answer": [{"rank": 0, "pid": 7}], "error": ""},
        {"id": 1, "answer": None, "error": "it is too late"},
    ],
    messages.Alive: [{"sent": 1.5, "time": 2.5}],
    messages.Open: [{"channel": 3, "service": "HVDLITE_RENDEZVOUS"}],
    messages.Close: [{"channel": 3}],
    messages.Signalled: [{"signum": 10}],
    messages.Taken: [{"rank": 0, "nbytes": 9}, {"rank": 0, "nbytes": None}],
    messages.Stopped: [{"rank": 0, "pid": 7}],
    messages.Found: [
        {
            "rank": 0,
            "finding": ["stall", "it waits", {"seconds": 9.0, "waits": [WAIT], "circle": [[0, "a"], [1, "b"]]}],
        },
        {"rank": 0, "finding": ["mute", "no Python", {"seconds": 9.0, "patience_s": 5.0}]},
        {"rank": 0, "finding": ["straggler", "slow", {"rank": 1, "share": 0.5, "since_s": 9.0, "said": "rank 1"}]},
    ],
    messages.Box: [{"rank": 0, "at": 1.5, "epoch_s": -2.5, "box": "AAAA"}],
}


@fuzzed
@given(data=st.data())
@pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: str(kind.__name__))
def test_a_frame_of_an_agent_is_taken_or_ends_that_agent(kind: type[messages.Message], data: st.DataObject) -> None:
    hvdrun = Hvdrun()
    try:
        hvdrun.receive(kind, data.draw(deformed(FRAMES[kind])))
    finally:
        hvdrun.close()


@pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: str(kind.__name__))
def test_a_frame_of_an_honest_agent_is_taken(kind: type[messages.Message]) -> None:
    for valid in FRAMES[kind]:
        hvdrun = Hvdrun()
        try:
            hvdrun.receive(kind, json.dumps(valid).encode())
            assert hvdrun.link.problem == ""
        finally:
            hvdrun.close()

"""Whoever reads the fields of a frame, with fields that are not what they have to be: wrong types, sizes and numbers.

Each reader has one row: frames that are valid, and what reads them. It raises the documented error, or nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.blackbox import format as blackbox
from hvdlite.blackbox.format import (
    DUMP_AT,
    FINDING,
    FINDINGS_AT,
    HEAD,
    MARK,
    NBYTES,
    NOTE,
    NOTES_AT,
    STACKS,
    STACKS_AT,
    Phase,
)
from hvdlite.blackbox.times import spent_by
from hvdlite.errors import CannotStart, HorovodInternalError
from hvdlite.host.machine import describe_machine
from hvdlite.launcher.agent.inspection.stacks import _parsed, _parsed_dump
from hvdlite.launcher.agent.inspection.status import status_of
from hvdlite.launcher.agent.inspection.unresponsive import Unresponsive
from hvdlite.launcher.agent.inspection.watch import packed
from hvdlite.launcher.agent.network.interfaces import describe_network
from hvdlite.launcher.agent.ranks.workers import Worker
from hvdlite.launcher.blackbox.boxes import unpacked
from hvdlite.launcher.doctor.facts import parse_machine, parse_software
from hvdlite.launcher.job.timeline import check_events
from hvdlite.launcher.monitor.client import Job
from hvdlite.launcher.monitor.monitor import Asked
from hvdlite.launcher.network.candidates import Network
from hvdlite.launcher.network.connect_test import Dialled, Listening
from hvdlite.launcher.nodes.connection import NodeConnection
from hvdlite.launcher.nodes.node import _Node
from hvdlite.launcher.nodes.records import Channel, Introduction, Record
from hvdlite.launcher.reports.causes import Window, explain, windows
from hvdlite.launcher.reports.reports import _waits
from hvdlite.launcher.reports.stacks import as_lines, looked
from hvdlite.launcher.reports.stalls import read_stall
from hvdlite.launcher.stream import messages
from hvdlite.launcher.stream.fields import parse_fields, read
from hvdlite.launcher.stream.frames import FrameError
from hvdlite.launcher.stream.hello import Hello
from hvdlite.launcher.stream.loop import Loop
from hvdlite.launcher.top.rows import Viewer
from hvdlite.net.untrusted import parse
from hvdlite.planes.nccl.offers import _parsed as parsed_offer
from hvdlite.rendezvous.roster import read_arrival
from tests.launcher.samples import EXITED
from tests.security.damage import WAIT, deformed, fuzzed

NODE = Introduction(1, 2, 1, Hello.describe())
OTHER = Window("near", 4.0, {"run_s": 1.0})
THREAD = {
    "name": "MainThread",
    "is_main": True,
    "state": "S",
    "syscall": "",
    "wchan": "",
    "calls": [["a.py", 7, "step"]],
}
RATES = {
    "span_s": 9.0,
    "batches": 9,
    "nbytes": 1 << 20,
    "moved_s": 1.0,
    "waited_s": 2.0,
    "unagreed_s": 1.0,
    "steps": 8,
    "steps_per_s": 1.0,
    "late_s": [[0, 0.5]],
}
STATUS = {
    "rank": 0,
    "pid": 7,
    "at": 9.0,
    "state": "S",
    "cpu_s": 3.5,
    "quantities": {"memory_bytes": 1 << 20},
    "phase": "INSIDE",
    "in_flight": 1,
    "waiting_s": 2.5,
    "unagreed_s": 1.5,
    "missing": 1,
    "names": ["a"],
    "rates": RATES,
    "last": {"name": "a", "tensors": 2, "number": 9, "at": 8.0},
}


class Reader(NamedTuple):
    """A function that reads the JSON of what is in ``valid``, and the error that it raises for anything else."""

    valid: list[Any]
    read: Callable[[bytes], object]
    error: type[Exception] | tuple[()] = ()


# ---- nodes


class Records:
    """A connection over which one record has come."""

    sock = SimpleNamespace(fileno=lambda: 0)

    def __init__(self, kind: Record, payload: bytes) -> None:
        self._records = [(kind, payload)]

    def receive(self) -> Iterator[tuple[Record, bytes]]:
        yield from self._records

    def seal(self, kind: Record, **fields: object) -> bytes:
        return b""


def read_of_node(kind: Record) -> Callable[[bytes], None]:
    """Node 0 gets a record from another node."""

    def read(payload: bytes) -> None:
        node = NodeConnection(cast(Channel, Records(kind, payload)), NODE, "10.0.0.1")
        node.has_ended = True  # nothing is to be written
        with suppress(CannotStart):
            node.take()

    return read


def read_of_node_0(payload: bytes) -> None:
    """Another node gets the end of the job from node 0."""
    node = object.__new__(_Node)
    node._loop, node._lost, node._outcome, node._host = Loop(), "", None, "a"
    node._channel = cast(Channel, Records(Record.OVER, payload))
    try:
        node._obey(node._channel.receive())
    finally:
        node._loop.close()
    assert bool(node._lost) == (node._outcome is None)
    assert node._outcome is None or 0 <= node._outcome[0] < 256


# ---- an agent, and what a rank has written


def memory_with(text: bytes) -> bytearray:
    """A black box in which everything that is JSON is ``text``, and all numbers are made of it."""
    memory = bytearray((text or b"\0") * (NBYTES // max(len(text), 1) + 1))[:NBYTES]
    HEAD.pack_into(memory, 0, MARK, 1 << 31, 0, 1, Phase.INSIDE)
    NOTE.pack_into(memory, NOTES_AT, 2, 1.0, len(text), text, 2)
    FINDING.pack_into(memory, FINDINGS_AT, 2, len(text), text, 2)
    STACKS.pack_into(memory, STACKS_AT, 2, len(text), text, 2)
    return memory


def read_box(text: bytes) -> None:
    """The agent reads the box, and what it sends hvdrun of it can be sent."""
    memory = bytes(memory_with(text[: 6 << 10]))
    box = blackbox.look(memory)
    assert box is not None
    blackbox.describe(box, 1.0)
    told = blackbox.stacks(memory, 1)
    stacks = None if told is None else _parsed(told)
    dump = _parsed_dump(memory[DUMP_AT:].decode(errors="replace"), box.note.get("threads"), {})
    answer = {
        "status": status_of(0, 1, memory, 2.0),
        "unresponsive": Unresponsive().look(0, memory, 100.0),
        "findings": blackbox.findings(memory, 0),
        "stacks": stacks,
        "dump": dump,
        "spent": spent_by(blackbox.quantities(memory), 3.0),
        "box": packed(0, memory),
    }
    list(messages.Decoder().feed(messages.encode(messages.Answer(1, answer, ""))))


def read_report(text: bytes) -> None:
    """The agent reads which rank ended the session of another."""
    read, written = os.pipe()
    with open(written, "wb", buffering=0) as pipe:
        pipe.write(text[: 32 << 10])
    told = Worker(0, cast(Any, None), {}, read).read_report()
    list(messages.Decoder().feed(messages.encode(EXITED._replace(ended_by=told))))


# ---- answers of agents


class Answered:
    """The client of a job whose agent has answered."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def job(self) -> Job:
        return Job(1, (), "", 1, 1.0, (0,), {"far": (0,)}, "", 0.0)

    def ask(self, what: str) -> list[Mapping[str, Any]]:
        return [{"host": "far", "ranks": [0], "answer": self._answer}]


def read_evidence(text: bytes) -> None:
    found = windows(parse(text), "far", frozenset({0, 1}))
    explain(0, 0.5, {1: OTHER, **found})


def read_stacks(text: bytes) -> None:
    "\n".join(as_lines([looked(0, "far", parse(text))])).encode(errors="backslashreplace")


def read_facts(text: bytes) -> None:
    facts = parse(text)
    if isinstance(facts, dict):
        read_stall(facts, 4)


READERS: Mapping[str, Reader] = {
    "questions at hvdrun's socket": Reader(
        [{"what": "stacks", "ranks": [0, 1], "all": True}, {"what": "job"}, {"what": "no such thing"}],
        lambda text: read(Asked, parse(text)),
        ValueError,
    ),
    "questions to agents": Reader(
        [
            {"id": 1, "question": ["Dial", {"token": "c0", "targets": [[1, "::1", 9]], "timeout_s": 2.0, "bulk_s": 0}]},
            {"id": 2, "question": ["FreePorts", {"address": "::1", "ports": [4000, 4100], "most": 3}]},
            {"id": 3, "question": ["Stacks", {"ranks": [0, 1], "all": False}]},
            {"id": 4, "question": ["Unpack", {"name": "tree-1"}]},
        ],
        lambda payload: read(messages.Ask, parse_fields(payload)),
        FrameError,
    ),
    "introductions of nodes": Reader(
        [{"node": 1, "nodes": 2, "slots": 1, "hello": Hello.describe()._asdict()}],
        lambda payload: read(Introduction, parse_fields(payload)),
        FrameError,
    ),
    "ends of streams of nodes": Reader([{"reason": "it ended"}], read_of_node(Record.END)),
    "signals of nodes": Reader([{"signum": 15}], read_of_node(Record.SIGNAL)),
    "ends of jobs of node 0": Reader([{"code": 7, "text": "it failed"}], read_of_node_0),
    "requests at the rendezvous": Reader(
        [{"epoch": 3, "round": 0, "rank": 1, "size": 4, "timeout_s": 30.0, "offer": {"host": "a", "gpus": [1, 2]}}],
        read_arrival,
        ValueError,
    ),
    "events for the timeline": Reader(
        [{"name": "a", "pid": 3, "ts": 1.5, "args": {"ranks": [1]}}], lambda text: check_events(text, 3), ValueError
    ),
    "offers for NCCL": Reader(
        [["a", 0, "b", 1, 2, "c" * 8, True, ""]], lambda text: parsed_offer(text, 1), HorovodInternalError
    ),
    "notes of ranks": Reader(
        [
            {
                "in_flight": 2,
                "names": ["a", "b"],
                "waiting_s": 9.5,
                "unagreed_s": 9.0,
                "missing": 3,
                "ours": "/x/",
                "stack": ["step, a.py:7"],
                "groups": {"0": [[], 2, [[1, "a"]]]},
                "threads": [[1, 2, "MainThread"]],
            }
        ],
        read_box,
    ),
    "findings of ranks": Reader([["stall", "it waits", {"seconds": 9.0}]], read_box),
    "stacks of ranks": Reader([{"threads": [[1, 2, "MainThread", [["a.py", 7, "step"]]]]}], read_box),
    "reports of ranks": Reader([[3, "it was stopped"]], read_report),
    "answers about machines": Reader([describe_machine()], lambda text: parse_machine(parse(text)), ValueError),
    "answers about software": Reader(
        [
            {
                "problem": "",
                "without_native": "",
                "wakeup_us": 3.5,
                "python": "3.11.7",
                "executable": "/bin/python",
                "hvdlite": "0.1",
                "abi": 3,
                "library": "",
                "pyzmq": "1",
                "zmq": "2",
                "has_curve": True,
                "frameworks": {"torch": "2.0"},
                "cuda": "",
                "without_cuda": "",
                "nccl": "",
                "without_nccl": "",
            }
        ],
        lambda text: parse_software(parse(text)),
        ValueError,
    ),
    "answers about networks": Reader([describe_network()], lambda text: read(Network, parse(text)), ValueError),
    "answers about ports": Reader(
        [{"ports": {"10.0.0.1": 4000}, "problems": {}}],
        lambda text: read(Listening, parse(text)),
        ValueError,
    ),
    "answers about dialled addresses": Reader(
        [{"results": [{"rtt_us": 50.0, "mb_per_s": 1e3}, {"problem": "other host", "host": 1}]}],
        lambda text: read(Dialled, parse(text)),
        ValueError,
    ),
    "answers about what ranks do": Reader(
        [[STATUS]], lambda text: Viewer(cast(Any, Answered(parse(text)))).look(), ValueError
    ),
    "answers about who waits": Reader([[STATUS]], lambda text: list(_waits(parse(text), 1.0)), ValueError),
    "answers with stacks": Reader(
        [{"pid": 1, "command": "python", "state": "S", "way": "asked", "threads": [THREAD], "children": [STATUS]}],
        read_stacks,
        ValueError,
    ),
    "answers with evidence": Reader(
        [[{"rank": 0, "over_s": 4.0, "sums": {"run_s": 1.5, "timeouts": 2}, "cores": None, "memory": 1.5}]],
        read_evidence,
        ValueError,
    ),
    "answers with black boxes": Reader(
        [cast(Any, packed(0, bytes(memory_with(b"{}"))))._asdict()],
        lambda text: unpacked(parse(text), "far"),
        ValueError,
    ),
    "facts of stalls": Reader([{"seconds": 9.0, "waits": [WAIT], "circle": [[0, "a"]]}], read_facts, ValueError),
}


@fuzzed
@given(data=st.data())
@pytest.mark.parametrize("name", READERS)
def test_wrong_fields_raise_the_documented_error(name: str, data: st.DataObject) -> None:
    reader = READERS[name]
    with suppress(*([reader.error] if reader.error else [])):  # type: ignore[list-item]
        reader.read(data.draw(deformed(reader.valid)))


@pytest.mark.parametrize("name", READERS)
def test_valid_fields_are_read(name: str) -> None:
    for valid in READERS[name].valid:
        READERS[name].read(json.dumps(valid).encode())

"""Everything that reads what a peer sent, with damaged frames: the documented error comes out, or nothing does."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from typing import NamedTuple

import psutil
import pytest

from hvdlite.control import greeting
from hvdlite.control.delivery import Delivery
from hvdlite.control.frames import FrameSocket
from hvdlite.launcher.agent.network.interfaces import describe_network
from hvdlite.launcher.network.candidates import Network
from hvdlite.launcher.stream import messages
from hvdlite.launcher.stream.fields import parse_fields, read
from hvdlite.launcher.stream.frames import FrameError
from hvdlite.launcher.stream.hello import Hello
from hvdlite.negotiation.messages import Batch, End, EndKind, Gathered, News, Ready, Response, Run, Tuning
from hvdlite.negotiation.wire import (
    Header,
    Message,
    ProtocolError,
    Type,
    body_of,
    encode,
    frame_of,
    header_of,
    message_of,
)
from hvdlite.net.handshake import Callee, Caller, Refused
from hvdlite.rendezvous.roster import read_arrival
from tests.launcher.samples import EXITED
from tests.security.damage import damaged
from tests.unit.replicas import request

SESSION = 7
SECRET = bytes(range(32))
MAY_GROW_BYTES = 10 << 20

REQUESTS = (request("weight[0]", shape=(4, 1000), group_length=2), request("bias", shape=(), splits=(1, 2), peer=1))
READY = Ready(3, 1 << 70 | 5, REQUESTS, 1 << 70, 0b10)
MESSAGES: tuple[Message, ...] = (
    READY,
    Ready(0, 255, ()),
    Gathered((News((0, 1), READY), News((2,), Ready(0, 1, ())))),
    Run(
        3, (Batch(1 << 90, ()), Batch(0, (Response("weight", "", (1, 2), 4, REQUESTS[0]), Response("x", "no", (), -1))))
    ),
    Run(0, (Batch(1, ()),), 1, Tuning(128 << 20, 0.005)),
    End(EndKind.STALLED, 2, "node7", "it hangs", 4.5, ((1, "loss"), (3, "weight"))),
)
REQUEST = {"epoch": 3, "round": 0, "rank": 1, "size": 4, "timeout_s": 30.0, "offer": {"host": "node7", "port": 40000}}


class Decoder(NamedTuple):
    """A function that reads frames such as ``valid``, and the error that it raises for an invalid one."""

    valid: list[bytes]
    read: Callable[[bytes], object]
    error: type[Exception]


def read_message(frame: bytes) -> object:
    return message_of(header_of(frame, SESSION), frame)


def read_greeting(frame: bytes) -> object:
    return greeting.read_refusal(frame), greeting.read_hello(header_of(frame, SESSION), frame)


def read_stream(frame: bytes) -> None:
    """After a few messages that were read, and sent."""
    stream = Delivery(SESSION)
    for message in MESSAGES[:2]:
        stream.send(*body_of(message))
    with suppress(ProtocolError):
        stream.receive(header_of(frame, SESSION), frame)
    stream.receive(header_of(frame, SESSION), frame)


def read_packets(packet: bytes) -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = FrameSocket(near)
    with closing(link):
        with far:
            far.send(packet or b"\0")
        while not link.has_ended:
            if (frame := link.receive()) is not None:
                read_message(frame)


def read_launcher_frames(data: bytes) -> None:
    list(messages.Decoder().feed(data))


def read_handshake(message: bytes) -> None:
    for party in (Callee(SECRET, SESSION, 2, 1), Caller(SECRET, SESSION, 1, 2)):
        party.take(message[: party.awaits].ljust(party.awaits, b"\0"))


DECODERS = {
    "control messages": Decoder([encode(message, 1, SESSION) for message in MESSAGES], read_message, ProtocolError),
    "streams": Decoder(
        [frame_of(Header(kind, 0, 2), SESSION, body) for kind, body in map(body_of, MESSAGES)]
        + [frame_of(Header(Type.RECEIPT, 1, 1), SESSION, b"")],
        read_stream,
        ProtocolError,
    ),
    "greetings": Decoder(
        [
            greeting.hello(greeting.Hello(1, 4, bytes(greeting.TOKEN_BYTES)), 1, 2, SESSION),
            greeting.welcome(3, SESSION),
            greeting.refusal("it is lost", SESSION),
        ],
        read_greeting,
        ProtocolError,
    ),
    "packets of one host": Decoder(
        [b"\0" + encode(message, 1, SESSION) for message in MESSAGES], read_packets, ProtocolError
    ),
    "ring handshakes": Decoder([Caller(SECRET, SESSION, 1, 2).hello, bytes(64)], read_handshake, Refused),
    "offers": Decoder([json.dumps(REQUEST).encode()], read_arrival, ValueError),
    "frames of agents": Decoder(
        [
            messages.encode(EXITED),
            messages.encode(messages.Answer(4, {"ports": {"10.0.0.1": 40000}, "problems": {}}, "")),
            messages.encode(messages.Stdout(3, b"epoch 1\n")) + messages.encode(messages.Close(2)),
        ],
        read_launcher_frames,
        FrameError,
    ),
    "hellos of agents": Decoder(
        [json.dumps(Hello.describe()._asdict()).encode()],
        lambda payload: read(Hello, parse_fields(payload)),
        FrameError,
    ),
    "networks of hosts": Decoder(
        [json.dumps(describe_network()).encode()], lambda payload: read(Network, parse_fields(payload)), ValueError
    ),
}


def refused(decoder: Decoder, count: int, seed: int) -> int:
    """Counts the damaged frames that are refused. Raises any error but the documented one."""
    found = 0
    for frame in damaged(decoder.valid, count, seed):
        try:
            decoder.read(frame)
        except decoder.error:
            found += 1
    return found


def check(name: str, count: int) -> None:
    refused(DECODERS[name], 500, seed=1)
    before = psutil.Process().memory_info().rss
    assert refused(DECODERS[name], count, seed=2) > count // 4
    assert psutil.Process().memory_info().rss - before < MAY_GROW_BYTES


@pytest.mark.parametrize("name", DECODERS)
def test_damaged_frames_raise_the_documented_error(name: str) -> None:
    check(name, 2000)


@pytest.mark.faults
@pytest.mark.parametrize("name", DECODERS)
def test_a_million_of_them_in_all(name: str) -> None:
    check(name, 1_000_000 // len(DECODERS) + 1)

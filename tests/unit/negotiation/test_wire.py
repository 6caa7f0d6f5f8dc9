"""Control frames: what goes in comes out, and nothing malformed gets through."""

from __future__ import annotations

import contextlib
import sys
from types import FrameType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hvdlite.errors import DuplicateName
from hvdlite.negotiation.messages import (
    UNSENT,
    Batch,
    End,
    EndKind,
    Gathered,
    Kind,
    News,
    Ready,
    Request,
    Response,
    Run,
    Tuning,
)
from hvdlite.negotiation.wire import MAX_BYTES, Message, ProtocolError, Type, decode, encode
from hvdlite.tensors.device import Device
from hvdlite.tensors.dtypes import OP_NAMES, DType
from tests.unit.replicas import request

SCALES = st.floats(allow_nan=False)
REQUESTS = st.builds(
    Request,
    name=st.text(max_size=20),
    kind=st.sampled_from(Kind),
    dtype=st.sampled_from(DType),
    shape=st.lists(st.integers(0, 1000), max_size=4).map(tuple),
    op=st.sampled_from(sorted(OP_NAMES)),
    prescale=SCALES,
    postscale=SCALES,
    root=st.integers(0, 9),
    cacheable=st.booleans(),
    splits=st.lists(st.integers(0, 99), max_size=3).map(tuple),
    peer=st.integers(-1, 9),
    group_length=st.integers(-1, 9),
    device=st.builds(Device, st.from_regex("[a-z0-9]{1,16}", fullmatch=True), st.integers(0, 1 << 15)),
)
BITS = st.integers(0, 1 << 200)
RESPONSES = st.builds(
    Response,
    st.text(max_size=9),
    st.text(max_size=9),
    st.lists(st.integers(0, 99)).map(tuple),
    st.integers(-1, 99),
    st.none() | REQUESTS,
    st.booleans(),
)
BATCHES = st.builds(Batch, BITS, st.lists(RESPONSES, max_size=3).map(tuple))
READY = st.builds(
    lambda generation, bits, requests, blank: Ready(
        generation, bits, requests, bits & blank, blank & ((1 << len(requests)) - 1)
    ),
    st.integers(0, 99),
    BITS,
    st.lists(REQUESTS, max_size=3).map(tuple),
    BITS,
)
TUNINGS = st.builds(Tuning, st.integers(0, MAX_BYTES), st.floats(0, allow_infinity=False))
NEWS = st.builds(News, st.lists(st.integers(0, 1 << 31), max_size=4).map(tuple), READY)
MESSAGES = st.one_of(
    READY,
    st.builds(Gathered, st.lists(NEWS, max_size=3).map(tuple)),
    st.builds(Run, st.integers(0, 99), st.lists(BATCHES, max_size=3).map(tuple), BITS, st.none() | TUNINGS),
    st.builds(
        End,
        st.sampled_from(sorted(set(EndKind) - UNSENT)),
        st.integers(0, 9),
        st.text(),
        st.text(),
        st.floats(0, 9),
        st.lists(st.tuples(st.integers(0, 9), st.text())).map(tuple),
    ),
)


@given(MESSAGES, st.integers(0, 1 << 33), st.integers(0, (1 << 64) - 1))
def test_a_message_survives_its_journey(message: Message, sequence: int, session: int) -> None:
    assert decode(encode(message, sequence, session), sequence, session) == message


@given(MESSAGES, st.data())
def test_a_damaged_frame_is_refused_or_still_a_message(message: Message, data: st.DataObject) -> None:
    frame = bytearray(encode(message, 1, 2))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    del frame[data.draw(st.integers(0, len(frame))) :]
    with contextlib.suppress(ProtocolError):
        decode(bytes(frame), 1, 2)


@pytest.mark.parametrize("ready", [Ready(0, 0b01, (), 0b10), Ready(0, 0, (request("a"),), 0, 0b10)])
def test_a_rank_cannot_lack_the_value_of_what_it_did_not_submit(ready: Ready) -> None:
    with pytest.raises(ProtocolError, match="blank"):
        decode(encode(ready, 1, 2), 1, 2)


HEADER = encode(Run(0, ()), 1, 2)[:28]


@given(st.binary(max_size=200))
@example(b"\0\0\0\0\xff\xff\xff\xff")
def test_noise_is_refused(noise: bytes) -> None:
    for kind in (Type.RUN, Type.END, Type.GATHERED, Type.HELLO, 99):
        with pytest.raises(ProtocolError):
            decode(HEADER[:3] + bytes([kind]) + HEADER[4:] + noise, 1, 2)
    with pytest.raises(ProtocolError):
        decode(noise, 1, 2)


def test_what_a_signals_handler_raises_meanwhile_is_not_taken_for_damage() -> None:
    def handler(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_name == "_decode_ready":
            raise DuplicateName("tensor 'vote' is already in flight")

    frame = encode(Ready(0, 0, (request("t"),)), 0, 0)
    before = sys.gettrace()
    sys.settrace(handler)
    try:
        with pytest.raises(DuplicateName):
            decode(frame, 0, 0)
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    "tuning",
    [Tuning(MAX_BYTES + 1), Tuning(0, -1.0), Tuning(0, float("nan")), Tuning(0, float("inf"))],
    ids=str,
)
def test_a_tuning_that_cannot_be_is_refused(tuning: Tuning) -> None:
    with pytest.raises(ProtocolError, match="a tuning"):
        decode(encode(Run(0, (), 0, tuning), 1, 2), 1, 2)


def test_a_run_has_one_tuning_or_none_and_costs_nothing_without_it() -> None:
    tuned, untuned = encode(Run(0, (), 0, Tuning(5, 1.0)), 1, 2), encode(Run(0, ()), 1, 2)
    count_at = len(untuned) - 1
    assert untuned[count_at] == 0
    assert len(tuned) == len(untuned) + 16
    for length in range(len(untuned), len(tuned)):
        with pytest.raises(ProtocolError):
            decode(tuned[:length], 1, 2)
    with pytest.raises(ProtocolError, match="flags"):
        decode(tuned[:count_at] + b"\4" + tuned[count_at + 1 :], 1, 2)


def test_messages_say_that_a_page_was_closed_or_opens() -> None:
    for message in (
        Ready(1, 6, (), 2, 0, 3),
        Run(1, (), 0, None, opens=True),
        Run(1, (), 0, Tuning(5, 1.0), opens=True),
    ):
        assert decode(encode(message, 1, 2), 1, 2) == message


@pytest.mark.parametrize(("number", "session"), [(2, 2), (0, 2), (1, 3)])
def test_a_frame_of_another_turn_or_session_is_refused(number: int, session: int) -> None:
    with pytest.raises(ProtocolError, match="came instead of|is of session"):
        decode(encode(Run(0, ()), 1, 2), number, session)


@pytest.mark.parametrize(
    "change",
    [
        dict(name="x" * 5000),
        dict(shape=(-1,)),
        dict(shape=(1 << 40, 1 << 40)),
        dict(shape=(1,) * 65),
        dict(shape=(True,)),
        dict(op=77),
        dict(root=-1),
        dict(prescale="1"),
        dict(postscale=10**400),
        dict(shape=(0, 1 << 80)),
        dict(kind=99),
        dict(splits=(-1,)),
        dict(peer=-2),
        dict(group_length=-2),
        dict(group_length=True),
        dict(group_length=1 << 80),
        dict(dtype=99),
        dict(cacheable=1),
        dict(device="cpu"),
        dict(device=("cpu",)),
        dict(device=("", 0)),
        dict(device=("x" * 17, 0)),
        dict(device=("c/u", 0)),
        dict(device=("cpu", -1)),
        dict(device=("cpu", 1 << 16)),
        dict(device=("cpu", True)),
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_request_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    frame = encode(Ready(0, 0, (request("t", **change),)), 0, 0)
    with pytest.raises(ProtocolError):
        decode(frame, 0, 0)

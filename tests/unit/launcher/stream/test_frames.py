"""Frames: what is packed comes out, and what is no frame is refused before it costs memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.blackbox.format import Finding
from hvdlite.launcher.stream.frames import FrameError, FrameReader, pack
from hvdlite.launcher.stream.messages import (
    KINDS,
    Ask,
    Decoder,
    Exited,
    Files,
    Found,
    Hello,
    Stderr,
    WorkerStart,
    decode,
    encode,
)
from hvdlite.launcher.stream.questions import Clock, Dial, Target
from tests.launcher.samples import EXITED, KIND_OF, START


@given(
    st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.binary(max_size=50))), st.integers(min_value=1, max_value=40)
)
def test_frames_survive_any_cut(frames: list[tuple[int, bytes]], piece: int) -> None:
    data = b"".join(pack(kind, payload) for kind, payload in frames)
    reader = FrameReader(KINDS)
    found = [frame for start in range(0, len(data), piece) for frame in reader.feed(data[start : start + piece])]
    assert found == frames


@pytest.mark.parametrize(
    "message",
    [
        Hello.describe(),
        START._replace(workers=(WorkerStart(0, {"A": "\udcff"}, reads=True),)),
        EXITED,
        Stderr(7, b"\x00\xff\n"),
        Files(b"x"),
        Ask(7, Dial("c0ffee", (Target(1, "::1", 4000),), 2.0, 0.25)),
        Ask(8, Clock()),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_is_encoded_comes_out(message: Hello) -> None:
    assert list(Decoder().feed(encode(message))) == [message]


@pytest.mark.parametrize("header", [b"\xff\xff\xff\xff\x06", b"\x00\x00\x00\x01\x63", b"HTTP/1.1 200 OK"])
def test_what_is_no_frame_is_refused_at_its_header(header: bytes) -> None:
    with pytest.raises(FrameError, match="not a frame"):
        list(FrameReader(KINDS).feed(header))


def test_payloads_that_hold_nothing_sensible() -> None:
    for payload in (b"{", b"[1]", b"\xff", b"{}"):
        with pytest.raises(FrameError):
            decode(KIND_OF[Exited], payload)
    with pytest.raises(FrameError, match="too short"):
        decode(KIND_OF[Stderr], b"abc")


def test_a_text_for_the_user_becomes_one_printable_line() -> None:
    (message,) = Decoder().feed(encode(EXITED._replace(agent="which\n got \33[2J", last=("a\tb",))))
    assert message == EXITED._replace(agent="which got ?[2J", last=("a b",))
    (found,) = Decoder().feed(encode(Found(0, Finding("other", "red \33[31m and\nmore\7", {}))))
    assert found == Found(0, Finding("other", "red ?[31m and more?", {}))

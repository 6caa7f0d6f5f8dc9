"""Frames: what is packed comes out, and what is no frame is refused before it costs memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.launcher.stream.frames import (
    FrameError,
    FrameReader,
    Kind,
    pack,
    pack_message,
    pack_output,
    unpack_message,
    unpack_output,
)


@given(st.lists(st.tuples(st.sampled_from(Kind), st.binary(max_size=50))), st.integers(min_value=1, max_value=40))
def test_frames_survive_any_cut(frames: list[tuple[Kind, bytes]], piece: int) -> None:
    data = b"".join(pack(kind, payload) for kind, payload in frames)
    reader = FrameReader()
    found = [frame for start in range(0, len(data), piece) for frame in reader.feed(data[start : start + piece])]
    assert found == frames


def test_messages_and_output() -> None:
    ((kind, payload),) = FrameReader().feed(pack_message(Kind.EXITED, rank=3, code=-9))
    assert (kind, unpack_message(payload)) == (Kind.EXITED, {"rank": 3, "code": -9})
    ((kind, payload),) = FrameReader().feed(pack_output(Kind.STDERR, 7, b"\x00\xff\n"))
    assert (kind, *unpack_output(payload)) == (Kind.STDERR, 7, b"\x00\xff\n")


@pytest.mark.parametrize("header", [b"\xff\xff\xff\xff\x06", b"\x00\x00\x00\x01\x63", b"HTTP/1.1 200 OK"])
def test_what_is_no_frame_is_refused_at_its_header(header: bytes) -> None:
    with pytest.raises(FrameError, match="not a frame"):
        list(FrameReader().feed(header))


def test_payloads_that_hold_nothing_sensible() -> None:
    for payload in (b"{", b"[1]", b"\xff"):
        with pytest.raises(FrameError):
            unpack_message(payload)
    with pytest.raises(FrameError, match="too short"):
        unpack_output(b"abc")

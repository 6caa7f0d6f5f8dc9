"""Sealed frames: what is sealed is opened, and nothing else is."""

from __future__ import annotations

import importlib
import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.net import sealed
from hvdlite.net.sealed import NoLibcrypto, Sealer, Unsealed

LIMIT = 1 << 16
FRAMES = [(1, b"first"), (255, b""), (2, os.urandom(LIMIT)), (1, b"first")]


def ends() -> tuple[Sealer, Sealer]:
    one, other = os.urandom(16), os.urandom(16)
    return Sealer(one, other, LIMIT), Sealer(other, one, LIMIT)


@given(st.lists(st.integers(0, 2 * LIMIT), max_size=5))
def test_frames_come_whole_in_whatever_pieces(cuts: list[int]) -> None:
    one, other = ends()
    stream = b"".join(one.seal(*frame) for frame in FRAMES)
    edges = [0, *sorted(cuts), len(stream)]
    pieces = [stream[first:last] for first, last in itertools.pairwise(edges)]
    assert [frame for piece in pieces for frame in other.open(piece)] == FRAMES


def test_both_directions_are_sealed_with_keys_of_their_own() -> None:
    one, other = ends()
    frame = one.seal(7, b"the same")
    assert b"the same" not in frame
    assert frame != other.seal(7, b"the same")
    with pytest.raises(Unsealed):
        list(one.open(frame))


def test_equal_frames_look_different() -> None:
    one, _ = ends()
    assert one.seal(7, b"again") != one.seal(7, b"again")


@pytest.mark.parametrize("place", ["length", "kind", "payload", "tag"])
def test_a_frame_that_was_altered_anywhere_is_not_opened(place: str) -> None:
    one, other = ends()
    frame = bytearray(one.seal(7, b"payload") + one.seal(7, b"more"))
    frame[{"length": 3, "kind": 4, "payload": 6, "tag": 15}[place]] ^= 1
    with pytest.raises(Unsealed, match="altered"):
        list(other.open(bytes(frame)))


@pytest.mark.parametrize("order", [(1,), (0, 0), (1, 0), (0, 2)], ids=["first lost", "twice", "swapped", "one lost"])
def test_frames_that_are_lost_repeated_or_out_of_place_are_not_opened(order: tuple[int, ...]) -> None:
    one, other = ends()
    frames = [one.seal(7, b"%d" % number) for number in range(3)]
    with pytest.raises(Unsealed, match="altered"):
        list(other.open(b"".join(frames[number] for number in order)))


def test_a_length_beyond_the_limit_is_refused_at_once() -> None:
    one, other = ends()
    with pytest.raises(Unsealed, match="longer than"):
        list(other.open(one.seal(7, bytes(LIMIT + 1))[:5]))


def test_a_python_without_libcrypto_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (None, "/nowhere/_hashlib.so"):
        monkeypatch.setattr(importlib.import_module("_hashlib"), "__file__", path)
        sealed._libcrypto.cache_clear()
        with pytest.raises(NoLibcrypto, match="no OpenSSL"):
            ends()
    monkeypatch.undo()
    sealed._libcrypto.cache_clear()
    ends()

"""Lines out of bytes, wherever the pieces were cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hvdlite.launcher.screen.output import MAX_LINE_BYTES, LineAssembler, Stream, prefix


def assemble(*pieces: bytes) -> list[bytes]:
    assembler = LineAssembler()
    lines = [line for piece in pieces for line in assembler.feed(piece)]
    return lines + assembler.end()


def test_lines_come_whole_whatever_the_pieces() -> None:
    assert assemble(b"one\ntw", b"o\n", b"\nthr", b"ee") == [b"one", b"two", b"", b"three"]


def test_bytes_of_any_encoding_pass_unchanged() -> None:
    data = bytes(range(256)).replace(b"\r", b"").replace(b"\n", b"")
    assert assemble(data + b"\n") == [data]


def test_windows_line_ends_lose_their_carriage_return() -> None:
    assert assemble(b"one\r\ntwo\r", b"\nthree\r\n") == [b"one", b"two", b"three"]


def test_a_progress_bar_leaves_its_last_state() -> None:
    assert assemble(b"\r  0%|", b"\r 50%|#", b"\r100%|##\n", b"done\n") == [b"100%|##", b"done"]
    assert assemble(b" 50%\r", b"100%\r", b"\n") == [b"100%"]


def test_a_bar_that_wipes_itself_out_leaves_nothing() -> None:
    assert assemble(b"\r 50%|#", b"\r       \r") == []
    assert assemble(b"\r 50%|#", b"\r       \r", b"done\n") == [b"done"]


def test_progress_is_what_the_bar_shows_now() -> None:
    assembler = LineAssembler()
    assembler.feed(b"plain")
    assert assembler.progress == b""
    assembler.feed(b" text\n\r 10%")
    assert assembler.progress == b" 10%"
    assembler.feed(b"\r 20%\r")
    assert assembler.progress == b" 20%"
    assembler.feed(b"\n")
    assert assembler.progress == b""


def test_an_endless_line_is_cut_and_not_kept() -> None:
    assembler = LineAssembler()
    lines = [line for _ in range(40) for line in assembler.feed(b"x" * (64 << 10))]
    lines += assembler.end()
    assert b"".join(lines) == b"x" * (40 * (64 << 10))
    assert all(len(line) <= MAX_LINE_BYTES + (64 << 10) for line in lines)


@given(st.binary(max_size=200), st.lists(st.integers(min_value=0, max_value=200), max_size=6))
def test_where_the_pieces_are_cut_does_not_matter(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:stop] for start, stop in pairwise(edges)]
    assert assemble(*pieces) == assemble(data)


@given(st.lists(st.binary(max_size=20).filter(lambda line: not set(line) & set(b"\r\n")), max_size=10))
def test_lines_without_carriage_returns_come_back_as_they_are(lines: list[bytes]) -> None:
    assert assemble(b"".join(line + b"\n" for line in lines)) == lines


def test_prefixes_are_horovods() -> None:
    assert prefix(3, Stream.STDOUT) == b"[3]<stdout>:"
    assert prefix(12, Stream.STDERR, stamp="Thu Jan  1 00:00:00 1970") == b"Thu Jan  1 00:00:00 1970[12]<stderr>:"


def test_colour_surrounds_the_prefix_and_differs_between_neighbours() -> None:
    first, second = (prefix(rank, Stream.STDOUT, is_coloured=True) for rank in (0, 1))
    assert first.startswith(b"\x1b[")
    assert first.endswith(b"[0]<stdout>:\x1b[0m")
    assert first[:5] != second[:5]

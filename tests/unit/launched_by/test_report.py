"""What a rank writes to hvdrun's pipe about the rank that ended its session, and to no other pipe."""

from __future__ import annotations

import os

from hvdlite.launched_by.report import report


def test_a_line_is_written_to_the_pipe_that_hvdrun_gave() -> None:
    read, written = os.pipe()
    report(3, "it was stopped", f"{written}:{os.fstat(written).st_ino}")
    assert os.read(read, 100) == b'[3, "it was stopped"]\n'
    os.close(read)
    os.close(written)


def test_a_pipe_that_took_over_the_descriptor_stays_empty() -> None:
    (given, given_end), (foreign, foreign_end) = os.pipe(), os.pipe()
    pipe = f"{given_end}:{os.fstat(given_end).st_ino}"
    os.dup2(foreign_end, given_end)  # as a program that closes all descriptors, and opens its own
    report(3, "it was stopped", pipe)
    for end in (given_end, foreign_end):
        os.close(end)
    assert (os.read(given, 100), os.read(foreign, 100)) == (b"", b"")
    os.close(given)
    os.close(foreign)

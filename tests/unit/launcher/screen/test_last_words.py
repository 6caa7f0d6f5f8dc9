"""Which lines of a failed rank's output the box shows."""

from __future__ import annotations

import pytest

from hvdlite.launcher.screen.last_words import Crash, last_words

_TRACE = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    f(x)"]
_DYNAMO = [
    "dynamo.exc.Unsupported: graph break",
    "  Hint: none",
    "",
    "from user code:",
    '   File "train.py", line 6, in f',
]
WORDS = {
    "an error": ([*_TRACE, "KeyError: 'x'"], ["KeyError: 'x'"]),
    "an error of a torchrun's rank": (
        ["[rank1]: " + line for line in [*_TRACE, "KeyError: 'x'"]],
        ["[rank1]: KeyError: 'x'"],
    ),
    "the last of two errors": ([*_TRACE, "KeyError: 'x'", "", "During handling of", "", *_TRACE, "E: y"], ["E: y"]),
    "an error of several paragraphs": ([*_TRACE, *_DYNAMO, "", "Set TORCHDYNAMO_VERBOSE=1 for the internal"], _DYNAMO),
    "an error behind what JAX adds": (
        [*_TRACE, "E: y", "-" * 20, "For simplicity, JAX has removed its internal frames of"],
        ["E: y"],
    ),
    "an error whose traceback is gone": ([*_DYNAMO, "", "Set TORCHDYNAMO_VERBOSE=1 for the"], _DYNAMO[3:]),
    "no error": (["usage: train.py", "  --lr LR"], ["usage: train.py", "  --lr LR"]),
    "an indented end": (["  a", "  b"], ["  a", "  b"]),
    "nothing": (["", ""], []),
}


@pytest.mark.parametrize("words", WORDS)
def test_the_last_words_are_the_error(words: str) -> None:
    lines, expected = WORDS[words]
    assert last_words(lines) == expected


def test_a_crash_is_the_thread_that_crashed() -> None:
    frames = [b'  File "a.py", line %d in f' % line for line in range(20)]
    others = [b"", b"Thread 0x0a (most recent call first):", *frames, b""]
    crash = Crash()
    for line in [
        b"Fatal Python error: Aborted",
        *others,
        b"Current thread 0x0b (most recent call first):",
        *frames,
        *others,
    ]:
        crash.feed([line])
    assert crash.lines[0] == b"Fatal Python error: Aborted"
    assert crash.lines[1].startswith(b"Current thread 0x0b")
    assert crash.lines[2:] == frames[:8]
    assert not Crash.begins([b"Extension modules: numpy"])

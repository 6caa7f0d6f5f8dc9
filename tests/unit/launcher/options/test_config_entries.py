"""The reader of configuration files: what it takes means what YAML says, and what it does not take is named by line."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.launcher.options.config_file import Entry, read_entries

TEXT = """\
# a comment
---
controller: gloo   # and another
params:

    cycle_time_ms :  5
    # indented comment
    name: a#b c
    empty:
    null_too: ~
  # odd comment
autotune:
    log-file: "a # b: [c]"
    other: 'it''s'   # quoted
    minus: -1
last: {tab}x
odd: # a comment
 one: ''
 two: '' # a comment
nothing:
"""
READ = {
    "controller": "gloo",
    "params": None,
    "params.cycle_time_ms": "5",
    "params.name": "a#b c",
    "params.empty": None,
    "params.null_too": None,
    "autotune": None,
    "autotune.log-file": "a # b: [c]",
    "autotune.other": "it's",
    "autotune.minus": "-1",
    "last": "x",
    "odd": None,
    "odd.one": "",
    "odd.two": "",
    "nothing": None,
}
BAD = {
    "a\n": "line 1: 'a' is not 'key: value' with one value",
    "a:b\n": "line 1: 'a:b' is not 'key: value' with one value",
    "a: 1\n\tb: 2\n": "line 2: a tab indents it",
    "a: 1\n  b: 2\n": "line 2: 'b' is indented, but a above it has a value",
    "a: ~\n  b: 2\n": "line 2: 'b' is indented, but a above it has a value",
    "a:\n    b: 1\n  c: 2\n": "line 3: 'c' is indented like no line above it",
    "  a: 1\nb: 2\n": "line 2: 'b' is indented like no line above it",
    "a: 1\nb: 2\na: 3\n": "line 3: a was given in line 1 already",
    "a:\n  b: 1\n  b: 1\n": "line 3: a.b was given in line 2 already",
    "a:\n  b: 1\nc: 1\na:\n  d: 1\n": "line 4: a was given in line 1 already",
    "a:\n  b:\n    c: 1\n": "line 3: 'c' is indented like no line above it",
    **{
        text: f"line {text.count(chr(10))}: {text.splitlines()[-1].strip()!r} is not 'key: value' with one value"
        for text in (
            "a:\n- b\n",
            "a: [1, 2]\n",
            "a: {b: 1}\n",
            "a: &x 1\n",
            "a: *x\n",
            "a: !!str 1\n",
            "a: |\n",
            "%YAML 1.1\n",
            "? a\n",
            "a: - b\n",
            "a: b: c\n",
            "a: 'b\n",
            'a: "b\\n"\n',
            "a: 'b' c\n",
            "a: 1\n---\n",
            "a: 1\n...\n",
        )
    },
}


def test_what_is_read() -> None:
    assert {entry.path: entry.text for entry in read_entries(TEXT.replace("{tab}", "\t"))} == READ


def test_lines_are_counted_from_one() -> None:
    assert list(read_entries("\na:\n  b: 1\n")) == [Entry("a", None, 2), Entry("a.b", "1", 3)]


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "---\n"])
def test_nothing_is_in_it(text: str) -> None:
    assert list(read_entries(text)) == []


@pytest.mark.parametrize("text", BAD)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="^line ") as caught:
        list(read_entries(text))
    assert BAD[text] in str(caught.value)


@given(st.text(alphabet="ab:#'\"\\ -\n\t[]{}&~", max_size=60))
def test_any_text_is_read_or_named_by_line(text: str) -> None:
    paths: list[str] = []
    with suppress(ValueError):
        paths = [entry.path for entry in read_entries(text)]
    assert len(set(paths)) == len(paths)

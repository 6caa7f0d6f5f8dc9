"""Frames as broken networks, wrong versions and attackers make them out of valid ones."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import Phase as Phases
from hypothesis import strategies as st

_NUMBER = re.compile(rb"-?\d+")
_UNLIKELY = (
    *(b"-1", b"0.5", b"1e999", b"NaN", b"-Infinity", b"18446744073709551616", b"9" * 5000, b"true", b"null"),
    *(b'""', b'"\\ud800"', b"[]", b"{}", b"[" * 20_000, b'{"a":' * 20_000),
)


def damaged(valid: Sequence[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """So many frames out of ``valid``, the same for one ``seed``; a few may be valid by chance, or come out of turn."""
    chance = random.Random(seed)
    ways = (_truncated, _flipped, _spliced, _misnumbered, _noise)
    for _ in range(count):
        yield chance.choice(ways)(chance, valid)


def _truncated(chance: random.Random, valid: Sequence[bytes]) -> bytes:
    frame = chance.choice(valid)
    return frame[: chance.randrange(len(frame) + 1)]


def _flipped(chance: random.Random, valid: Sequence[bytes]) -> bytes:
    frame = bytearray(chance.choice(valid))
    for _ in range(chance.randrange(1, 4)):
        frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
    return bytes(frame)


def _spliced(chance: random.Random, valid: Sequence[bytes]) -> bytes:
    """The beginning of one and the end of another: also the same twice, in part or whole."""
    first, second = chance.choice(valid), chance.choice(valid)
    return first[: chance.randrange(len(first) + 1)] + second[chance.randrange(len(second) + 1) :]


def _misnumbered(chance: random.Random, valid: Sequence[bytes]) -> bytes:
    """With something unlikely in place of a number of its JSON, or of its first four bytes without one."""
    frame = chance.choice(valid)
    found = list(_NUMBER.finditer(frame))
    begin, end = chance.choice(found).span() if found else (0, 4)
    return frame[:begin] + chance.choice(_UNLIKELY) + frame[end:]


def _noise(chance: random.Random, valid: Sequence[bytes]) -> bytes:
    return chance.randbytes(chance.randrange(1, 100))


# ---- JSON whose fields are not what they have to be

_NESTED = (b"[" * 970 + b"]" * 970, b'{"a":' * 970 + b"1" + b"}" * 970)
_ODD = (
    *(*_UNLIKELY, *_NESTED, b"-9223372036854775809", b"1e308", b"9" * 4000, b"0", b"false", b"[[]]", b'{"0":[]}'),
    *(b'"\xed\xa0\x80"', b'"\xff"', b'"\\u001b[2J"', b'"' + b"x" * 100_000 + b'"', b'"1"', b"[1,2,3]"),
)
fuzzed = settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    phases=[Phases.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
WAIT = [["a"], 1, [[1, 1]], [[0, 0]]]
_PLACE = '"\N{SNOWMAN}%d"'


@st.composite
def deformed(draw: st.DrawFn, valid: Sequence[Any]) -> bytes:
    """The JSON of one of ``valid``, whose fields have other values, or are missing, or come twice; and perhaps cut off.

    A number may become true, negative, huge or infinite, and anything may become text, nothing, or nested deeply.
    """
    value = copy.deepcopy(draw(st.sampled_from(valid)))
    odd: dict[str, bytes] = {}
    for number in range(draw(st.integers(1, 3))):
        if not (spots := list(_spots(value))):
            break
        parent, key = spots[draw(st.integers(0, len(spots) - 1))]
        way = draw(st.sampled_from(("other", "other", "missing", "twice")))
        if way == "missing":
            del parent[key]
            continue
        place = _PLACE % number
        odd[place] = draw(st.sampled_from(_ODD))
        if way == "twice" and isinstance(parent, dict):
            odd[place] = odd[place] + b"," + json.dumps(key).encode() + b":" + draw(st.sampled_from(_ODD))
        parent[key] = place[1:-1]
    text = json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")
    for place, raw in odd.items():
        text = text.replace(place.encode(), raw)
    return text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 19)) == 0 else text


def _spots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every list or object in ``value`` with each of its indices or names."""
    if isinstance(value, dict | list):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from _spots(inner)

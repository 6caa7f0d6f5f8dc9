"""Frames as broken networks, wrong versions and attackers make them out of valid ones."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

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

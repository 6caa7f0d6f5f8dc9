"""Writes the table of docs/hvdrun.md from the table of Horovod's flags: ``python -m tests.house.flags_page``."""

from __future__ import annotations

from collections.abc import Iterator

from hvdlite.launcher.options.flags import SETTINGS, Always, Flag, NoEffect, Sets
from hvdlite.launcher.options.table import FLAGS
from tests.house.tree import ROOT

PAGE = ROOT / "docs/hvdrun.md"
_BEGIN = "## Horovod's flags\n"
_HEAD = """
`-np`, `-H` and the like are [listed with Horovod's names](horovod.md#horovodrun). A key is one of the file of
`--config-file`. [Settings](settings.md) describes the variables. A flag without effect is reported in one line, and the
job starts; a refused flag starts nothing. `make docs` generates this section.

| flag | key | here |
|---|---|---|
"""


def render(page: str) -> str:
    """The whole page, with its last section, the flags, generated again."""
    head, _, _ = page.partition(_BEGIN)
    flags_by_effect: dict[str, list[Flag]] = {}
    for flag in FLAGS:
        flags_by_effect.setdefault(_effect(flag), []).append(flag)
    return head + _BEGIN + _HEAD + "".join(_row(flags, effect) for effect, flags in flags_by_effect.items())


def _row(flags: list[Flag], effect: str) -> str:
    names = [name for flag in flags for name in _spellings(flag)]
    keys = [flag.key for flag in flags if flag.key]
    return f"| {_code(names)} | {_code(keys)} | {effect} |\n"


def _spellings(flag: Flag) -> Iterator[str]:
    for name in (*flag.names, flag.opposite):
        if name:
            yield f"{name} {flag.metavar}".rstrip()


def _code(words: list[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _effect(flag: Flag) -> str:
    match flag:
        case Sets(setting=name, is_negated=is_negated):
            how = ", where 1 means off" if is_negated else ""
            return f"sets `{SETTINGS[name].variables[0]}`{how}"
        case Always():
            return f"always so: {flag.note}"
        case NoEffect():
            return f"no effect: {flag.note}"
        case _:
            return f"refused: {flag.note}"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))

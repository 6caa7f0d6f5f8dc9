"""Finds the code blocks and links of a Markdown page.

A block is run unless its opening line says ``illustration``, as in ```` ```python illustration ````. In ``console``
blocks only the lines that begin with ``$ `` are commands. What says ``ranks`` runs on two of them, after the first such
block of its page. What names a framework or an engine, such as ``jax``, runs on two ranks with the tests of that
family.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```(?P<language>\w+)(?P<marks>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One block: where it starts, its language, and what to run."""

    path: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"


_FRAMEWORKS = {"jax", "keras", "tensorflow", "ray", "spark", "dask", "slurm"}


def runnable_blocks(path: Path, on_ranks: bool = False, framework: str = "") -> Iterator[Block]:
    """The blocks in python, console or bash that are to be run, in a process of their own or ``on_ranks``.

    With a ``framework``, those that name it; otherwise those that name none.
    """
    page = path.read_text()
    for match in _BLOCK.finditer(page):
        language, text = match["language"], match["text"]
        if "illustration" in match["marks"] or language not in ("python", "console", "bash"):
            continue
        marks = match["marks"].split()
        if _FRAMEWORKS.intersection(marks) != ({framework} if framework else set()) or ("ranks" in marks) != on_ranks:
            continue
        if language == "console":
            text = "".join(line[2:] for line in text.splitlines(keepends=True) if line.startswith("$ "))
        yield Block(path, page[: match.start()].count("\n") + 1, language, text)


def links(path: Path) -> Iterator[str]:
    """The targets of all links outside code blocks."""
    for match in _LINK.finditer(_BLOCK.sub("", path.read_text())):
        yield match["target"]


def anchors(path: Path) -> set[str]:
    """The anchors that the headings of a page make."""
    headings = _HEADING.findall(_BLOCK.sub("", path.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}

"""The documentation is true: its code runs, its links lead somewhere, and the page of settings is the table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.patience import PATIENCE_S
from tests.house import flags_page, settings_page
from tests.house.blocks import Block, anchors, links, runnable_blocks
from tests.house.tree import ROOT, files

PAGES = [ROOT / path for path in files(".md")]
BLOCKS = [block for page in PAGES for block in runnable_blocks(page)]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_block_runs(block: Block, tmp_path: Path) -> None:
    """From the root of the project, with the environment's programs first on PATH."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {**os.environ, "PATH": programs, "MPLBACKEND": "Agg", "TMPDIR": str(tmp_path)}
    interpreter = [sys.executable, "-"] if block.language == "python" else ["bash", "-euo", "pipefail", "-s"]
    ended = subprocess.run(
        interpreter, input=block.text, text=True, capture_output=True, cwd=ROOT, env=environ, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, f"{block}:\n{block.text}\n{ended.stdout}\n{ended.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in links(page):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        goal = page.parent / name if name else page
        if not goal.exists() or (anchor and anchor not in anchors(goal)):
            broken.append(target)
    assert broken == []


def test_the_page_of_settings_is_the_table() -> None:
    assert settings_page.PAGE.read_text() == settings_page.render(), "run 'make docs'"


def test_the_flags_on_the_page_of_hvdrun_are_the_table() -> None:
    page = flags_page.PAGE.read_text()
    assert page == flags_page.render(page), "run 'make docs'"


def test_blocks_and_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# The First Page!\n[a](b.md#c) `code`\n```python\nx = 1\n```\n```console\n$ echo [x](y)\nx\n```\n"
        "```bash illustration\nrm -rf everything\n```\n```\nplain\n```\n"
    )
    assert [(block.line, block.text) for block in runnable_blocks(page)] == [(3, "x = 1\n"), (6, "echo [x](y)\n")]
    assert list(links(page)) == ["b.md#c"]
    assert anchors(page) == {"the-first-page"}

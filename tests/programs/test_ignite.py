"""Some of pytorch-ignite's own tests of Horovod pass; 'make test-ignite' runs all of them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.engines.starting import outputs, start
from tests.programs.ignite import prepare

CHOSEN = ["utils/test_horovod.py::test_idist_new_group_hvd", "test_launcher.py"]


def test_groups_and_both_launchers(tmp_path: Path) -> None:
    """Of the launchers, one is horovodrun, and the other a program that calls ``horovod.run``."""
    chosen = [f"tests/ignite/distributed/{each}" for each in CHOSEN]
    out, err = outputs(start(*prepare(tmp_path, ["--color=no", *chosen])))
    assert re.search(r"\b3 passed\b(?!.*skipped)", out), out + err

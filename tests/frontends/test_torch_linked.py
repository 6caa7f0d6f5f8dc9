"""hvdlite behind a symbolic link, as in a home or an environment that is one, knows its own code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hvdlite

_SCRIPT = """
import hvdlite.torch as hvd
from hvdlite import session
from hvdlite.torch.collectives import compiled

assert "/link/" in hvd.__file__, hvd.__file__
assert session.init._torchdynamo_disable
assert not hasattr(compiled._run_here, "_torchdynamo_disable")
hvd.rank()
"""


def test_code_behind_a_link_is_left_out_of_graphs_and_of_tracebacks(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(Path(hvdlite.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "link")}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    *frames, error = done.stderr.splitlines()
    assert error == "ValueError: hvdlite has not been initialized; call hvd.init() first"
    assert [line for line in frames if "/hvdlite/" in line] == []

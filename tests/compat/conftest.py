"""A fixture of the tests that ask for ``horovod``."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A folder with something else that is called horovod."""
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod/__init__.py").write_text("run = 'the other one'\n")
    return tmp_path

"""docs/api.md names everything that is public."""

from __future__ import annotations

import re

import pytest

import hvdlite
import hvdlite.torch
from tests.house.tree import ROOT

PAGE = set(re.findall(r"\w+", (ROOT / "docs" / "api.md").read_text()))
PUBLIC = sorted({*hvdlite.__all__, *hvdlite.torch.__all__} - {"__version__"})


@pytest.mark.parametrize("name", PUBLIC)
def test_the_name_is_on_the_page(name: str) -> None:
    assert name in PAGE

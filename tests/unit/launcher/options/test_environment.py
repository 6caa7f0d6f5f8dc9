"""Variables that are nearly settings are told, and no others."""

from __future__ import annotations

import pytest

from hvdlite.launcher.options.environment import misspelt
from hvdlite.settings import table


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("HVDLITE_FUSION_TRESHOLD", "HVDLITE_FUSION_THRESHOLD"),
        ("HVDLITE_SHM_SLOT", "HVDLITE_SHM_SLOTS"),
        ("HVDLITE_LOGLEVEL", "HVDLITE_LOG_LEVEL"),
        ("HVDLITE_START_TIMEOUT_S", "HVDLITE_START_TIMEOUT"),
    ],
)
def test_a_variable_that_is_nearly_a_setting_is_told(wrong: str, right: str) -> None:
    assert list(misspelt(["PATH", wrong])) == [(wrong, right)]


def test_no_other_variable_is_taken_for_a_setting() -> None:
    known = [variable for spec in table() for variable in spec.variables]
    others = ("HVDLITE_", "HVDLITE_HOME", "HVDLITE_PORT", "HVDLITE_HOST", "HVDLITE_DATA", "HVDLITE_TEST_HOST", "PLANES")
    assert not list(misspelt([*known, *others]))

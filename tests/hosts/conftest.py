"""The fixture of the tests that start a job in more than one way."""

from __future__ import annotations

import pytest

from tests.hosts.starting import AsNodes, OverSsh, Start


@pytest.fixture(params=["ssh", "nodes"])
def start(request: pytest.FixtureRequest) -> Start:
    """Both ways, one after the other."""
    return OverSsh() if request.param == "ssh" else AsNodes()

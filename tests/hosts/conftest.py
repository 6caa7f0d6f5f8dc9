"""The fixture of the tests that start a job in more than one way."""

from __future__ import annotations

import pytest

from tests.hosts.starting import AsNodes, OnOneHost, OverSsh, Start

WAYS: dict[str, type[Start]] = {"ssh": OverSsh, "nodes": AsNodes, "local": OnOneHost}


@pytest.fixture(params=["ssh", "nodes"])
def start(request: pytest.FixtureRequest) -> Start:
    """Each way in turn, by default those to several hosts."""
    return WAYS[request.param]()

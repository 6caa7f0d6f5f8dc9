"""Slurm's lists of nodes and of their tasks."""

from __future__ import annotations

import pytest

from hvdlite.launched_by.slurm import first_host, tasks_of_nodes


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("n1", "n1"),
        ("n[1-2]", "n1"),
        ("n[08-12,20]-ib,m1", "n08-ib"),
        ("rack[0-1]n[03,05]", "rack0n03"),
        ("a,b[1-2]", "a"),
        ("n[7]", "n7"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_node_list(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


def test_the_tasks_of_the_nodes_of_a_step() -> None:
    assert tasks_of_nodes("2(x3),1") == [2, 2, 2, 1]
    assert tasks_of_nodes("4") == [4]

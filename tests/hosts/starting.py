"""The ways to start a job on several test hosts: over ssh from the first one, or by hvdrun on every one.

Tests that ask for the fixture ``start`` run with both. What has nothing to do with hosts runs on a single one as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from subprocess import CompletedProcess
from typing import Protocol

from tests.harness.hosts import HostProcess, Network
from tests.harness.patience import PATIENCE_S
from tests.hosts import jobs
from tests.hosts.nodes import KEY
from tests.launcher.hvdrun import COMMAND

NODES_PORT = 29400


class Start(Protocol):
    """Starts hvdrun for ``hosts``, such as ``a:2,b:1``. ``port`` is what it uses between hosts."""

    port: int

    def run(self, network: Network, hosts: str, *arguments: str, **environment: str) -> CompletedProcess[str]:
        """Runs a job to its end; returns what hvdrun wrote on the first host."""

    def running(
        self, network: Network, hosts: str, *arguments: str, ranks: int, **environment: str
    ) -> AbstractContextManager[HostProcess]:
        """hvdrun on the first host once each rank has written ``ready``."""


class OverSsh:
    port = 22

    def run(self, network: Network, hosts: str, *arguments: str, **environment: str) -> CompletedProcess[str]:
        return jobs.hvdrun(network[hosts[0]], "-H", hosts, *arguments, **environment)

    def running(
        self, network: Network, hosts: str, *arguments: str, ranks: int, **environment: str
    ) -> AbstractContextManager[HostProcess]:
        return jobs.running(network[hosts[0]], "-H", hosts, *arguments, ranks=ranks, **environment)


class OnOneHost:
    """All ranks are on the first host."""

    port = 0

    def run(self, network: Network, hosts: str, *arguments: str, **environment: str) -> CompletedProcess[str]:
        return jobs.hvdrun(network[hosts[0]], *_all_ranks(hosts), *arguments, **environment)

    def running(
        self, network: Network, hosts: str, *arguments: str, ranks: int, **environment: str
    ) -> AbstractContextManager[HostProcess]:
        return jobs.running(network[hosts[0]], *_all_ranks(hosts), *arguments, ranks=ranks, **environment)


class AsNodes:
    """The exit codes of all nodes have to be equal; a test that kills one takes it out of ``others`` itself."""

    port = NODES_PORT

    def run(self, network: Network, hosts: str, *arguments: str, **environment: str) -> CompletedProcess[str]:
        with _others(network, hosts, arguments, environment) as others:
            (first, slots), *_ = _parsed(hosts)
            ended = jobs.hvdrun(network[first], *_place(hosts, 0, slots), *arguments, HVDLITE_SECRET=KEY, **environment)
            codes = {name: other.wait(PATIENCE_S) for name, other in others.items()}
            said = {name: other.stderr.read().decode() for name, other in others.items() if other.stderr}
        assert set(codes.values()) == {ended.returncode}, f"{codes}\n{ended.stderr}\n{said}"
        return ended

    @contextmanager
    def running(
        self, network: Network, hosts: str, *arguments: str, ranks: int, **environment: str
    ) -> Iterator[HostProcess]:
        (first, slots), *_ = _parsed(hosts)
        with (
            _others(network, hosts, arguments, environment),
            jobs.running(
                network[first], *_place(hosts, 0, slots), *arguments, ranks=ranks, HVDLITE_SECRET=KEY, **environment
            ) as process,
        ):
            yield process


def _all_ranks(hosts: str) -> tuple[str, str]:
    return "-np", str(sum(int(slots) for _, slots in _parsed(hosts)))


def _parsed(hosts: str) -> list[tuple[str, str]]:
    return [(name, slots) for name, slots in re.findall(r"(\w+):(\d+)", hosts)]


def _place(hosts: str, rank: int, slots: str) -> tuple[str, ...]:
    listed = _parsed(hosts)
    master = f"{listed[0][0]}:{NODES_PORT}"
    return ("--node-rank", str(rank), "--nnodes", str(len(listed)), "--master", master, "-ppn", slots)


@contextmanager
def _others(
    network: Network, hosts: str, arguments: tuple[str, ...], environment: dict[str, str]
) -> Iterator[dict[str, HostProcess]]:
    """hvdrun on all ``hosts`` but the first, killed at the end if it still runs."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                network[name].popen(
                    *COMMAND, *_place(hosts, rank, slots), *arguments, env={"HVDLITE_SECRET": KEY, **environment}
                )
            )
            for rank, (name, slots) in enumerate(_parsed(hosts))
            if rank > 0
        }

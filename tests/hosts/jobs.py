"""hvdrun on a test host, started by a user who is logged in there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import CompletedProcess

from tests.harness.hosts import Host, HostProcess
from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import COMMAND, read_until

SAY_READY = "echo ready; exec sleep 600"


def hvdrun(host: Host, *arguments: str, **environment: str) -> CompletedProcess[str]:
    """Runs hvdrun on ``host`` to its end."""
    return host.run(*COMMAND, *arguments, env=environment)


@contextmanager
def running(host: Host, *arguments: str, ranks: int, **environment: str) -> Iterator[HostProcess]:
    """hvdrun on ``host`` once each of its ``ranks`` has written ``ready``; killed at the end if it still runs."""
    with host.popen(*COMMAND, *arguments, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            read_until(process.stdout.fileno(), lambda found: found.count(b"ready\n") == ranks)
        except AssertionError as error:
            process.kill()
            raise AssertionError(f"{error}\n{process.stderr.read().decode()}") from None
        yield process


def lines_by_rank(ended: CompletedProcess[str]) -> dict[int, list[str]]:
    """Returns each rank's lines of stdout, without the prefix."""
    assert ended.returncode == 0, f"code {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    lines: dict[int, list[str]] = {}
    for line in ended.stdout.splitlines():
        prefix, _, text = line.partition("<stdout>:")
        lines.setdefault(int(prefix.strip("[]")), []).append(text)
    return dict(sorted(lines.items()))


def reported(ended: CompletedProcess[str]) -> list[dict[str, str]]:
    """The JSON that each rank wrote as its only line, in rank order."""
    return [json.loads(line) for (line,) in lines_by_rank(ended).values()]


def rest_of(process: HostProcess) -> tuple[int, str]:
    """The exit code and what was still written to stderr, once the process has ended."""
    code = process.wait(PATIENCE_S)
    assert process.stderr is not None
    return code, process.stderr.read().decode()

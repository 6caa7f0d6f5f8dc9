"""The child process in which `hvdlite.run` runs hvdrun; it ends with the caller, and reports failures as JSON.

The report is one line on a pipe that the caller reads: ``{"rank", "host", "code", "last_lines"}`` of the rank that
failed first, or ``{"error", "message"}`` if the job could not be started. The pipe ends when this
process does, for whatever reason.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from hvdlite.errors import LaunchError
from hvdlite.host.processes import die_with_parent
from hvdlite.launcher.cli import hvdrun
from hvdlite.launcher.decisions.supervisor import Failure
from hvdlite.launcher.network.attempts import HostsUnreached
from hvdlite.running.worker import DELIVERED

_KEYWORDS: Final = {
    "-H": "hosts",
    "-np": "np",
    "--hostfile": "hostfile",
    "--network-interface": "network_interfaces",
    "--network-interfaces": "network_interfaces",
    "--output-filename": "output_filename",
    "--ssh-identity-file": "ssh_identity_file",
    "--ssh-port": "ssh_port",
    "--start-timeout": "start_timeout",
}
_OPTION: Final = re.compile(r"(?<![\w-])(?<!hvdrun )(--[a-z][a-z-]*|-H|-np)(?![\w-])")


def in_words_of_run(text: str) -> str:
    """A message of hvdrun, with arguments of `hvdlite.run` in place of options; those that it lacks are hvdrun's."""
    return _OPTION.sub(lambda option: _KEYWORDS.get(option[1], f"hvdrun's {option[1]}"), text)


def main(caller: int, pipe: int, arguments: Sequence[str]) -> int:
    """Runs hvdrun for process ``caller``, which reads ``pipe``; returns its exit code."""

    def report(**fields: Any) -> None:
        os.write(pipe, json.dumps(fields).encode() + b"\n")

    def report_failure(failure: Failure, last_lines: Sequence[str]) -> bool:
        report(rank=failure.rank, host=failure.host, code=failure.code, last_lines=list(last_lines))
        return bool(failure.code != DELIVERED)

    die_with_parent(signal.SIGTERM, caller)
    try:
        return int(hvdrun.main(arguments, "hvdrun", standalone_mode=False, obj=report_failure) or 0)
    except click.ClickException as error:
        report(error="ValueError", message=in_words_of_run(error.format_message()))
    except (LaunchError, ValueError, OSError) as error:
        if isinstance(error, HostsUnreached):
            print(in_words_of_run("\n".join(error.report)), file=sys.stderr)
        report(error=type(error).__name__, message=in_words_of_run(str(error)))
    return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))

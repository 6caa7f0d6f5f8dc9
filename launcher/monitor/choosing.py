"""The job that a command means."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from .client import Client, JobEnded, running

_MOST_CHARACTERS = 60  # of a command


class JobNotNamed(click.UsageError):
    """The user must say which job is meant. ``report`` has a line for each that runs."""

    def __init__(self, text: str, report: Sequence[str]) -> None:
        super().__init__(text)
        self.report = report


def chosen(pid: int | None) -> Client:
    """Connects to the hvdrun of process ``pid``, or to the only one that runs. The caller closes the connection.

    Raises JobNotNamed that lists those that run, or UsageError if there is none.
    """
    clients = running()
    found = [client for client in clients if pid is None or client.pid == pid]
    if len(found) != 1:
        listed = [_describe(client) for client in clients]
    for client in clients:
        if found != [client]:
            client.close()
    if len(found) == 1:
        return found[0]
    if not clients:
        raise click.UsageError("no job of yours runs on this host; ask on the host where its hvdrun runs.")
    wrong = f"no hvdrun of yours is process {pid}" if pid is not None else f"{len(clients)} jobs run"
    command = click.get_current_context().command_path
    raise JobNotNamed(f"{wrong}; give the process of one of those above, as in {command} {clients[0].pid}.", listed)


def with_logs_in(folder: Path) -> Client | None:
    """Connects to the hvdrun on this host whose --output-filename is ``folder``, if there is one that runs."""
    found = None
    for client in running():
        with suppress(JobEnded, OSError, ValueError):
            if found is None and os.path.samefile(client.job().logs, folder):
                found = client
                continue
        client.close()
    return found


def _describe(client: Client) -> str:
    try:
        job = client.job()
    except (JobEnded, TimeoutError) as error:
        return f"{client.pid}: {error}"
    return f"{client.pid}: {job.size} rank(s), {' '.join(job.command)[:_MOST_CHARACTERS]}"

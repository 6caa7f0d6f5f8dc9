"""Command-line options for jobs of which others start hvdrun on every node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import click

from ..nodes.place import Master, NodePlace, parse_master, place_of
from .gather import gathered
from .values import PathName

_SECRET: Final = "HVDLITE_SECRET"
_MOST_BYTES: Final = 1024  # of a file that holds a key


class NodeOptions(NamedTuple):
    """What the user has given of the place of this node, and the file with the key of all nodes."""

    rank: int | None
    nodes: int | None
    master: Master | None
    secret_file: str | None

    @property
    def are_given(self) -> bool:
        """True if the user has named a place for this node."""
        return any(option is not None for option in (self.rank, self.nodes, self.master))

    def place(self, environ: Mapping[str, str]) -> NodePlace | None:
        """The place of this node; None if neither options nor ``environ`` say that it is one. Raises UsageError."""
        try:
            return place_of(self.rank, self.nodes, self.master, environ)
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    def secret(self, environ: Mapping[str, str]) -> str:
        """The key of all nodes. Raises UsageError if there is none."""
        if self.secret_file is not None:
            try:
                with Path(self.secret_file).open("rb") as file:
                    return file.read(_MOST_BYTES).decode(errors="replace").strip()
            except OSError as error:
                raise click.UsageError(f"--secret-file {self.secret_file} cannot be read: {error.strerror}.") from None
        if not environ.get(_SECRET):
            raise click.UsageError(
                f"nodes need a key that keeps strangers out, the same on all of them: {_SECRET}, 64 hexadecimal digits "
                "from 'openssl rand -hex 32', or a file with them that --secret-file names."
            )
        return environ[_SECRET].strip()


def _master(context: click.Context, parameter: click.Parameter, text: str | None) -> Master | None:
    try:
        return None if text is None else parse_master(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


_OPTIONS: Final = (
    click.option("--node-rank", "rank", type=click.IntRange(0), metavar="I",
                 help="This is node I of a job for which hvdrun is started on every node."),
    click.option("--nnodes", "nodes", type=click.IntRange(1), metavar="N", help="The number of nodes."),
    click.option("--master", "master", metavar="HOST[:PORT]", callback=_master, help="Where node 0 is."),
    click.option("--secret-file", "secret_file", type=PathName(), metavar="FILE",
                 help="The key of all nodes; without it HVDLITE_SECRET."),
)  # fmt: skip

node_options: Final = gathered("node", NodeOptions, _OPTIONS)

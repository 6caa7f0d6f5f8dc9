"""The command ``hvdrun blackbox``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from ..options.values import PathName

_OURS: Final = re.compile(r"rank_\d+")


@click.command(
    "blackbox",
    short_help="Show what each rank of a job did last.",
    epilog="Example: hvdrun -np 4 --output-filename logs python train.py; hvdrun blackbox logs --torch traces; "
    "torchfrtrace traces.",
)
@click.argument("job", metavar="[PID|DIR]", required=False)
@click.option(
    "--torch",
    "output",
    type=PathName(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the latest collectives of each rank into this folder, for PyTorch's torchfrtrace.",
)
def blackbox(job: str | None, output: Path | None) -> None:
    """Show what each rank of a job did last: the batch that it finished, what it waits for, where its program is.

    The job is a running one, the process of whose hvdrun on this host may be left out if you run no other, or one that
    has or had --output-filename DIR.
    """
    # Imported here, for no job needs them, and every one would start later.
    from hvdlite.blackbox.format import describe, printable
    from hvdlite.host.descriptors import followed, write

    from ..monitor.choosing import chosen, with_logs_in
    from ..monitor.client import JobEnded
    from .boxes import Box, of_folder, of_running
    from .flight_recorder import dumped
    from .groups import groups_of

    folder = None if job is None or job.isdecimal() else _checked(Path(job))
    client = with_logs_in(folder) if folder is not None else chosen(None if job is None else int(job))
    size, found = 0, dict[int, Box]()
    if client is not None:
        with client:
            try:
                running, size = of_running(client)
                found = {box.rank: box for box in running}
            except JobEnded as ended:
                if folder is None:
                    raise click.ClickException(f"{ended}.") from None
    if folder is not None:  # after the running ones, for some may have ended meanwhile
        ended_before, size = of_folder(folder)
        found = {box.rank: box for box in ended_before} | found
    boxes = [found[rank] for rank in sorted(found)]
    if not boxes:
        why = "" if client is not None else ", or its hvdrun was killed, or runs on another host"
        raise click.ClickException(f"no rank of that job has a black box: none of them called init(){why}.")
    if output is None:
        for box in boxes:
            click.echo(f"rank {box.rank} on {box.host}, process {box.contents.pid}:")
            for line in describe(box.contents, box.at, "before its end" if box.has_ended else "ago"):
                click.echo(f"  {printable(line)}")
        return
    output = followed(output)
    output.mkdir(parents=True, exist_ok=True)
    if strange := sorted(path.name for path in output.iterdir() if not _OURS.fullmatch(path.name)):
        raise click.UsageError(f"--torch {output}: torchfrtrace would read {strange[0]} there too; name a new folder.")
    for path in output.iterdir():
        path.unlink()  # of another time
    groups = groups_of(boxes, size)
    for box in boxes:
        write(output / f"rank_{box.rank}", dumped(box, groups))
    missing = size - len(boxes)
    more = f" --allow-incomplete-ranks; {missing} rank(s) have no black box" if missing else ""
    click.echo(f"{output} has {len(boxes)} rank(s), for torchfrtrace {output}{more}")


def _checked(folder: Path) -> Path:
    if not any(folder.glob("rank.*")):
        raise click.UsageError(f"{folder} is neither the process of an hvdrun nor a folder of --output-filename.")
    return folder

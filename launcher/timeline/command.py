"""The command ``hvdrun timeline``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import click

from ..options.values import PathName, Seconds

_OF_RANK: Final = re.compile(r"\.rank\d+$")
_MOST_S: Final = 1e9  # more than any job runs, and few enough for the numbers of an axis


@click.command("timeline", short_help="Join timelines of ranks, and say where the time went.")
@click.argument("files", nargs=-1, required=True, type=PathName(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=PathName(dir_okay=False, path_type=Path), help="Where the joined file goes.")
@click.option("--picture", type=PathName(dir_okay=False, path_type=Path), help="Draw it, as SVG.")
@click.option(
    "--from",
    "begin_s",
    type=Seconds(max=_MOST_S),
    metavar="SECONDS",
    help="Where the picture begins, from the first span.",
)
@click.option("--to", "end_s", type=Seconds(max=_MOST_S), metavar="SECONDS", help="Where the picture ends.")
def timeline(
    files: tuple[Path, ...], output: Path | None, picture: Path | None, begin_s: float | None, end_s: float | None
) -> None:
    """Says where the time of a job went: what was hidden, who waited for whom, which tensors were slow.

    Several FILES, as in F.rank*, are those of ranks. They are joined in F, by one clock.
    """
    # Imported here, for no job needs them, and every one would start later.
    from hvdlite.blackbox.format import printable
    from hvdlite.host.descriptors import write

    from .joining import join
    from .picture import covered_us, draw
    from .summary import describe
    from .trace import RankTrace, ranks_of, read

    of_ranks = [path for path in files if _OF_RANK.search(path.name)]
    names = {_OF_RANK.sub("", path.name) for path in of_ranks}
    if output is None and len(of_ranks) > 1 and len(names) == 1:
        output = of_ranks[0].with_name(names.pop())
    if output is not None:
        files = tuple(path for path in files if path.resolve() != output.resolve())  # F* has F too, the second time
    elif len(files) > 1:
        raise click.UsageError("say with -o where the joined file goes.")
    traces: dict[int, RankTrace] = {}
    for path in files:
        for trace in read(path):
            if trace.rank in traces:
                raise click.UsageError(f"{path} has rank {trace.rank}, and so has another of the files.")
            traces[trace.rank] = trace
    ranks = [traces[rank] for rank in sorted(traces)]
    if output is not None:
        events = join(ranks)
        inside = ",\n".join(json.dumps(event) for event in events)
        write(output, f"[\n{inside}\n]\n".encode())
        ranks = ranks_of(events)
        click.echo(f"{output} has all of them, for https://ui.perfetto.dev")
    if picture is not None:
        first, last = covered_us(ranks)
        whole_s = (last - first) / 1e6
        begin, end = begin_s or 0.0, whole_s if end_s is None else end_s
        asked = [f"{flag} {at:g}" for flag, at in (("--from", begin_s), ("--to", end_s)) if at is not None]
        if asked and not 0.0 <= begin < min(end, whole_s):
            raise click.UsageError(
                f"{' '.join(asked)} has nothing to draw: the timeline covers 0 to {whole_s:g} seconds."
            )
        write(picture, draw(ranks, begin_s, end_s).encode())
        click.echo(f"{picture} shows it")
    for line in describe(ranks):
        click.echo(printable(line))

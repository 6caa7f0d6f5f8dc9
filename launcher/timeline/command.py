"""The command ``hvdrun timeline``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import click

_OF_RANK: Final = re.compile(r"\.rank\d+$")


@click.command("timeline", short_help="Join timelines of ranks, and say where the time went.")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Where the joined file goes.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it, as SVG.")
@click.option("--from", "begin_s", type=float, metavar="SECONDS", help="Where the picture begins, from the first span.")
@click.option("--to", "end_s", type=float, metavar="SECONDS", help="Where the picture ends.")
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
    from .picture import draw
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
        write(picture, draw(ranks, begin_s, end_s).encode())
        click.echo(f"{picture} shows it")
    for line in describe(ranks):
        click.echo(printable(line))

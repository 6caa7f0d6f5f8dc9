"""The black boxes of the ranks of a job that runs, or that has ended and had --output-filename."""

from __future__ import annotations

import base64
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from hvdlite.blackbox import format as blackbox
from hvdlite.blackbox.format import NBYTES, BlackBox
from hvdlite.net.untrusted import parse

from ..job.logs import BOX
from ..monitor.client import Client
from ..stream import messages
from ..stream.fields import listed, read, shown

_MOST_BYTES: Final = 4 * NBYTES


@dataclass(frozen=True)
class Box:
    """The black box of ``rank`` on ``host``, as it was at ``at``.

    Times are on the monotonic clock of that host, which showed ``epoch_s`` at the Unix epoch.
    """

    rank: int
    host: str
    at: float
    epoch_s: float
    contents: BlackBox
    has_ended: bool = False

    def nanoseconds(self, at: float) -> int:
        """A time of that host since the Unix epoch, as other programs have it; 0 if that is none."""
        since = at - self.epoch_s
        return int(since * 1e9) if 0 <= since < 1e10 else 0


def of_running(client: Client) -> tuple[list[Box], int]:
    """The boxes of a running job, in the order of its ranks, and how many ranks it has.

    Raises JobEnded, and ValueError for nonsense. Ranks are asked one by one: a box may be large.
    """
    size, boxes = client.job().size, []
    for rank in range(size):
        for line in client.ask("blackbox", ranks=[rank]):
            for packed in listed(line.get("answer")):
                boxes.append(unpacked(packed, shown(line.get("host"))))
    return boxes, size


def of_folder(folder: Path) -> tuple[list[Box], int]:
    """Those in a folder of --output-filename. Raises OSError, and ValueError for a file that is none."""
    boxes = []
    for path in folder.glob(f"rank.*/{BOX}"):
        with path.open("rb") as file:
            written = file.read(_MOST_BYTES)
        try:
            packed = parse(written)
            boxes.append(replace(unpacked(packed, shown(packed["host"])), has_ended=True))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no black box: {error}") from None
    return sorted(boxes, key=lambda box: box.rank), len(list(folder.glob("rank.*")))


def unpacked(packed: object, host: str) -> Box:
    """What an agent has packed. Raises ValueError."""
    rank, at, epoch_s, box = read(messages.Box, packed)
    memory = b""
    with suppress(ValueError, zlib.error):
        memory = zlib.decompressobj().decompress(base64.b64decode(box, validate=True), NBYTES)
    contents = blackbox.look(memory) if len(memory) == NBYTES else None
    if contents is None:
        raise ValueError("it is not one of hvdlite's")
    return Box(rank, host, at, epoch_s, contents)

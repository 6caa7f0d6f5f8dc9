"""The black boxes of the ranks of a job that runs, or that has ended and had --output-filename."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hvdlite.blackbox import format as blackbox
from hvdlite.blackbox.format import NBYTES, BlackBox
from hvdlite.net.untrusted import parse

from ..agents.fields import count, field, figure, improper, text
from ..job.logs import BOX
from ..monitor.client import Client

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
    size, boxes = count(client.job(), "size"), []
    for rank in range(size):
        for line in client.ask("blackbox", ranks=[rank]):
            for packed in field(line, "answer", list) if "answer" in line else ():
                boxes.append(unpacked(packed, text(line, "host")))
    return boxes, size


def of_folder(folder: Path) -> tuple[list[Box], int]:
    """Those in a folder of --output-filename. Raises OSError, and ValueError for a file that is none."""
    boxes = []
    for path in folder.glob(f"rank.*/{BOX}"):
        with path.open("rb") as file:
            written = file.read(_MOST_BYTES)
        try:
            packed = parse(written)
            boxes.append(replace(unpacked(packed, text(packed, "host")), has_ended=True))
        except ValueError as error:
            raise ValueError(f"{path} is no black box: {error}") from None
    return sorted(boxes, key=lambda box: box.rank), len(list(folder.glob("rank.*")))


def unpacked(packed: Mapping[str, Any], host: str) -> Box:
    """What an agent has packed. Raises ValueError."""
    epoch_s = field(packed, "epoch_s", float)
    memory = b""
    with suppress(ValueError, zlib.error):
        compressed = base64.b64decode(field(packed, "box", str), validate=True)
        memory = zlib.decompressobj().decompress(compressed, NBYTES)
    contents = blackbox.look(memory) if len(memory) == NBYTES else None
    if contents is None or not math.isfinite(epoch_s):
        raise improper("box")
    return Box(count(packed, "rank"), host, figure(packed, "at"), epoch_s, contents)

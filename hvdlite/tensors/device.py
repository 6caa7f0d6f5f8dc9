"""Where the memory of a tensor is."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_KIND_CHARACTERS: Final = 16
MAX_ORDINAL: Final = (1 << 16) - 1


class Device(NamedTuple):
    """One of a rank's devices of a ``kind``, such as "cpu" or "cuda", by its ``ordinal`` among them.

    Ranks agree about the kind of device on which a tensor is; the ordinal is each rank's own. Code of the host reads
    and writes the memory of CPUs only; any other is touched by the data plane of its kind, and by nothing else.
    """

    kind: str
    ordinal: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.ordinal}"


CPU: Final = Device("cpu")

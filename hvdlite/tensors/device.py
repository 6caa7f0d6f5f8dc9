"""The device that holds a tensor's memory."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_KIND_CHARACTERS: Final = 16
MAX_ORDINAL: Final = (1 << 16) - 1


class Device(NamedTuple):
    """One of a rank's devices of a ``kind``, such as "cpu" or "cuda", by its ``ordinal`` among them.

    Ranks agree on the kind of device of a tensor; the ordinal is each rank's own. Host code reads and writes CPU memory
    only; any other memory is touched only by the data plane of its kind.
    """

    kind: str
    ordinal: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.ordinal}"


CPU: Final = Device("cpu")

"""Which clock times a candidate."""

from __future__ import annotations

from hvdlite.bench.measuring.timing import Candidate


def candidate_for(device: str) -> type[Candidate]:
    """The class of candidates whose work is done by the kind of ``device``."""
    if device == "cpu":
        return Candidate
    from hvdlite.bench.gpu.timed import OnGpu  # it imports torch

    return OnGpu

"""The ranks' script: ``python job.py sums`` or ``python job.py loses``; each rank writes one line of JSON."""

from __future__ import annotations

import json
import os
import sys

import numpy as np

import hvdlite as hvd


def sums() -> dict[str, object]:
    """Two sessions with an all-reduce each, and where this rank is."""
    totals = []
    for session in range(2):
        hvd.init()
        totals.append(float(hvd.allreduce(np.full(1000, hvd.rank() + 10 * session), op=hvd.Sum)[-1]))
        place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
        hvd.shutdown()
    return {"place": place, "totals": totals}


def loses() -> dict[str, object]:
    """Rank 1 ends with code 0, so that its engine does not end the others."""
    hvd.init()
    try:
        hvd.allreduce(np.ones(10), name="before")  # rank 1 may have its result, and die, before rank 0 has its own
        if hvd.rank() == 1:
            os._exit(0)
        hvd.allreduce(np.ones(10), name="after")
    except hvd.PeerLost as error:
        return {"lost": error.rank}
    return {"lost": None}


def second_attempt() -> dict[str, object]:
    """Rank 1 fails in the first attempt of torchrun, after the ranks have met."""
    hvd.init()
    if hvd.rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise SystemExit(9)
    return {
        "attempt": os.environ["TORCHELASTIC_RESTART_COUNT"],
        "total": float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0]),
    }


if __name__ == "__main__":
    told = globals()[sys.argv[1]]()
    os.write(1, json.dumps(told).encode() + b"\n")  # in one piece: the ranks share a pipe

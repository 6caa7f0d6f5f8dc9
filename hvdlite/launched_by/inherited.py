"""The environment of a job that a rank starts.

Variables of the outer job do not hold in the inner one: the numbers of the rank, the addresses at which ranks meet, and
the file of the timeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hvdlite.launched_by.detect import OF_HVDRUN
from hvdlite.launched_by.numbers import numbers_of
from hvdlite.members.topology import Placement

MEETINGS: Final = ("KERAS_DISTRIBUTION_JOB_ADDRESSES", "JAX_COORDINATOR_ADDRESS")
"""Where the ranks of keras.distribution and of jax.distributed meet, each at a port of its own."""

_OF_ITS_JOB: Final = frozenset(
    {
        *numbers_of(Placement(0, "", 0, 1, 0, 1), 1),
        *(OF_HVDRUN, "HVDLITE_JOB", "HVDLITE_SECRET", "HVDLITE_RUN_ADDRESS", "HVDLITE_RUN_SECRET"),
        *("HVDLITE_REPORT", "HVDLITE_BLACKBOX"),
        *("HVDLITE_TIMELINE", "HOROVOD_TIMELINE", "HVDLITE_TIMELINE_ADDRESS"),
        *("MASTER_ADDR", "MASTER_PORT", *MEETINGS),
    }
)


def without_job(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` without the variables that hvdrun set for a rank, if it set any."""
    left_out = _OF_ITS_JOB if OF_HVDRUN in environ else ()
    return {name: value for name, value in environ.items() if name not in left_out}

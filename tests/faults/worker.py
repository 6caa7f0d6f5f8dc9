"""The script of ranks that faults happen to: all-reduces tensors with known sums until the test says stop.

``worker.py BYTES STOP_FILE``: rank 0 writes ``step N`` after each step and looks for the file, and all ranks end with
the step in which it sees it. Each rank ends with one line of JSON, a `Report`. Sums are of whole numbers, small enough
to be exact in any order; the inputs must be what they were, also after an error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import hvdlite as hvd

EXIT_ERROR = 3  # a collective raised
EXIT_WRONG = 4  # a sum, or an input after a collective, was not what it had to be
_PERIOD = 97


@dataclass
class Report:
    """The end of a rank. ``at`` is the monotonic time, which all test hosts share; ``lost`` is the rank of PeerLost."""

    rank: int
    steps: int = 0
    error: str = ""
    message: str = ""
    lost: int | None = None
    cause: str = ""
    wrong: str = ""
    at: float = 0.0


def main(length: str, stop_file: str) -> int:
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # hvdrun ends the others when one fails; they shall tell what they saw
    hvd.init()
    report = Report(hvd.rank())
    try:
        _train(report, int(length) // 4, stop_file)
    except hvd.HorovodInternalError as error:
        report.error, report.message = type(error).__name__, str(error)
        print(f"{report.error}: {error}", file=sys.stderr)
        report.lost, report.cause = getattr(error, "rank", None), getattr(error, "cause", "")
    report.at = report.at or time.monotonic()
    print(json.dumps(asdict(report)), flush=True)
    if not report.error:
        hvd.shutdown()
    return EXIT_WRONG if report.wrong else EXIT_ERROR if report.error else 0


def _train(report: Report, count: int, stop_file: str) -> None:
    base = np.arange(count, dtype=np.int64) % _PERIOD
    factor = hvd.size() * (hvd.size() + 1) // 2
    goes_on = True
    while goes_on and not report.wrong:
        pattern = ((base + report.steps) % _PERIOD).astype(np.float32)
        large, small = pattern * (hvd.rank() + 1), np.full(3, report.steps + hvd.rank(), np.int64)
        flag = np.array([hvd.rank() == 0 and os.path.exists(stop_file)], np.uint8)
        inputs = {"large": large, "small": small, "flag": flag}
        copies = {name: tensor.copy() for name, tensor in inputs.items()}
        try:
            handles = {name: hvd.allreduce_async(tensor, name=name, op=hvd.Sum) for name, tensor in inputs.items()}
            sums: dict[str, Any] = {name: hvd.synchronize(handle) for name, handle in handles.items()}
        except hvd.HorovodInternalError:
            report.at = time.monotonic()
            raise
        finally:
            changed = [name for name, tensor in inputs.items() if not np.array_equal(tensor, copies[name])]
            report.wrong = f"step {report.steps}: the input of {', '.join(changed)} was changed" if changed else ""
        expected_small = report.steps * hvd.size() + factor - hvd.size()
        if not ((sums["large"] == pattern * factor).all() and (sums["small"] == expected_small).all()):
            report.wrong = f"step {report.steps}: a sum is wrong"
        report.steps += 1
        goes_on = not sums["flag"][0]
        if hvd.rank() == 0:
            print("step", report.steps, flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

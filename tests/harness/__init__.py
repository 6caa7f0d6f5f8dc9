"""Ranks for tests, at three prices: threads (milliseconds), processes (a second or two), processes with faults.

`thread_ranks` runs a function once per rank in threads of this process. `process_ranks` and `ProcessRanks` run it in
real worker processes of one job, where `reached` and `pause_at` name the points at which a test kills or stops a rank.
tests/conftest.py checks `leaks` around every test. `FAKES` is a folder for PATH, with programs that stand in for ssh
and srun.
"""

from pathlib import Path

from tests.harness.outcome import Outcome
from tests.harness.points import pause_at, reached
from tests.harness.processes import ProcessRanks, RanksTimedOut, process_ranks
from tests.harness.threads import thread_ranks

FAKES = str(Path(__file__).with_name("fakes"))

__all__ = ["FAKES", "Outcome", "ProcessRanks", "RanksTimedOut", "pause_at", "process_ranks", "reached", "thread_ranks"]

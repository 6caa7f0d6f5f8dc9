"""A script whose ranks start jobs inside their job: rank 0 with `hvdlite.run`, and rank 1 with hvdrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import hvdlite as hvd
from tests.launcher.hvdrun import COMMAND

OWN = ("HVDLITE_JOB", "HVDLITE_TIMELINE", "MASTER_PORT")


def described() -> dict[str, Any]:
    """This process's rank, a sum over all ranks, and variables of its job."""
    hvd.init()
    total = float(hvd.allreduce(np.ones(3), op=hvd.Sum)[0])
    return {"rank": hvd.rank(), "total": total, "environment": {name: os.environ.get(name) for name in OWN}}


def outer() -> dict[str, Any]:
    hvd.init()
    environment = {name: os.environ.pop(name) for name in ("MASTER_ADDR", "MASTER_PORT")}  # as programs do
    if hvd.rank() == 0:
        inner = hvd.run(described, np=2, env={"MASTER_PORT": "1"})
    else:
        with tempfile.TemporaryDirectory() as folder:
            command = [*COMMAND, "-np", "2", "--output-filename", folder, sys.executable, __file__, "inner"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            inner = [json.loads(Path(folder, f"rank.{rank}/stdout").read_text()) for rank in range(2)]
    os.environ.update(environment)
    return {**described(), "inner": inner}


if __name__ == "__main__":
    print(json.dumps(described() if "inner" in sys.argv else outer()))

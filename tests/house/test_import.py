"""``import hvdlite`` is cheap: no framework, and a quarter of a second at most."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

LIMIT_S = 0.25

# The smaller of the times on the clock and on the processor: other programs delay the one, numpy's threads add to the
# other.
_PROGRAM = """
import json, sys, time
clock, processor = time.perf_counter(), time.process_time()
import hvdlite
seconds = min(time.perf_counter() - clock, time.process_time() - processor)
print(json.dumps({"seconds": seconds, "modules": sorted(sys.modules)}))
"""


def _import_once(bytecode: Path) -> tuple[float, set[str]]:
    """Seconds and modules of one import in a fresh process, with bytecode kept as an installed package has it."""
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environ["PYTHONPYCACHEPREFIX"] = str(bytecode)
    command = [sys.executable, "-c", _PROGRAM]
    report = json.loads(subprocess.run(command, env=environ, check=True, capture_output=True, timeout=60).stdout)
    return report["seconds"], {module.split(".")[0] for module in report["modules"]}


def test_importing_the_package_is_fast_and_imports_no_framework(tmp_path: Path) -> None:
    runs = [_import_once(tmp_path) for _ in range(8)]
    assert {"torch", "tensorflow", "keras", "jax", "click"} & runs[0][1] == set()
    best_s = min(seconds for seconds, _ in runs)
    print(f"import hvdlite: {best_s * 1000:.0f} ms, best of {len(runs)}")
    assert best_s < LIMIT_S


def test_hvdrun_imports_the_doctor_only_when_it_is_called() -> None:
    program = "import sys; from hvdlite.launcher import cli; print(*sys.modules)"
    modules = set(subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60).split())
    assert "hvdlite.launcher.doctor.command" in modules
    assert {
        "hvdlite.launcher.doctor.survey",
        "hvdlite.launcher.doctor.findings",
        "hvdlite.launcher.doctor.report",
    } & modules == set()

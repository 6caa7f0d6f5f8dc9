"""``python -m tests.gpu.machine``: builds hvdlite, tests and measures it on this machine's GPUs, and leaves logs.

See docs/testing.md. It needs no environment of its own, and no network.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from tests.gpu.machine import figures
from tests.gpu.machine.place import ENVIRONMENT
from tests.gpu.machine.running import ROOT, Run, Stage
from tests.gpu.machine.stages import stages

_NATIVE = Stage("build", 120, [(sys.executable, "setup.py", "--quiet", "build_native", "--inplace")])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.machine", description="Tests hvdlite on real GPUs.")
    parser.add_argument("--stage", action="append", metavar="NAME", help="run this one, also if it has passed")
    parser.add_argument("--list", action="store_true", help="print the stages and their limits")
    parser.add_argument("--for", dest="budget_s", type=float, metavar="SECONDS", help="end after so long")
    parser.add_argument("--logs", type=Path, default=ROOT / "build/gpu", metavar="DIR", help="default: build/gpu")
    parser.add_argument("--fakes", action="store_true", help="on the fakes that FAKE_CUDA and FAKE_TORCH name, tiny")
    options = parser.parse_args()
    logs = options.logs.resolve()
    every = [_NATIVE, *stages(logs, options.fakes)]
    if options.list:
        print(*(f"{stage.name:20} {stage.limit_s:4g} s" for stage in every), sep="\n")
        return 0
    chosen = [stage for stage in every if not options.stage or stage.name in options.stage]
    if strange := set(options.stage or ()) - {stage.name for stage in every}:
        parser.error(f"there is no stage {', '.join(sorted(strange))}; see --list")
    run = Run(logs, _environ(logs, options.fakes), options.budget_s)
    has_passed = run.run(chosen, again=bool(options.stage))
    text = figures.table(logs)
    (logs / "figures.md").write_text(text)
    print(text, end="")
    return 0 if has_passed else 1


def _environ(logs: Path, are_fakes: bool) -> dict[str, str]:
    """The variables of all stages. The source tree is imported as it is, with nothing installed."""
    site = logs / "site"
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    (site / "sitecustomize.py").write_text(_IMPORTER.format(launcher=str(ROOT / "launcher")))
    path = os.pathsep.join(filter(None, [str(site), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environ = {"PYTHONPATH": path, "TEST_PATIENCE_S": "60", "PYTHONUNBUFFERED": "1"}
    return environ if are_fakes else {**environ, **ENVIRONMENT, "TEST_GPU": "machine"}


_IMPORTER = '''"""Lets hvdlite.launcher be imported from the source tree."""

import sys
from importlib.util import spec_from_file_location


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "hvdlite.launcher":
            folder = {launcher!r}
            return spec_from_file_location(name, folder + "/__init__.py", submodule_search_locations=[folder])


sys.meta_path.append(Finder)
'''

if __name__ == "__main__":
    sys.exit(main())

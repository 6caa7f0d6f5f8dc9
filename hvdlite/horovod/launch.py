"""``horovod.runner.launch``: Horovod's command line is `hvdrun` with ``--horovod-compat``."""

from __future__ import annotations

import sys

from hvdlite.launcher.cli import main


def run_commandline() -> None:
    """Runs the command line in ``sys.argv``, as ``horovodrun`` did. Raises SystemExit if that fails."""
    if code := main(["--horovod-compat", *sys.argv[1:]]):
        sys.exit(code)


if __name__ == "__main__":  # python -m horovod.runner.launch
    run_commandline()

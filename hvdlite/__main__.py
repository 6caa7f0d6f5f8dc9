"""``python -m hvdlite`` is ``hvdrun``, for where the folder of its command is not on PATH."""

import sys

from hvdlite.launcher.cli import main

if __name__ == "__main__":
    sys.exit(main())

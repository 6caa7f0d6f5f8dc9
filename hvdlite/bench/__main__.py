"""``python -m hvdlite.bench``."""

import sys

from hvdlite.bench.cli import main

sys.exit(main())

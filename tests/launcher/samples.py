"""Messages between hvdrun and an agent, for tests to send or to change."""

from __future__ import annotations

import os

from hvdlite.launcher.stream.messages import KINDS, Exited, Start

KIND_OF = {what: kind for kind, what in KINDS.items()}
PATH = {"PATH": os.environ["PATH"]}
START = Start("/", ("sh", "-c", 'eval "$PROGRAM"'), PATH, {}, False, {}, (), 0.0, keeps_boxes=False)
EXITED = Exited(1, 7, -9, 1.5, False, (0, "it was stopped"), "", ("in init()",), None, is_alone=False)

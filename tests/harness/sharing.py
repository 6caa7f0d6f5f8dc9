"""How the processes of pytest-xdist share the test files: those that need torch's fork server go to two of them.

Each process that gets such a file starts the server, and so imports torch once more. The others take one only when no
other file is left.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from xdist.scheduler import LoadFileScheduling

_PROCESSES: Final = 2
_ROOT: Final = Path(__file__).resolve().parents[2]


class TorchTogether(LoadFileScheduling):
    """Hands out whole files, in order, and to the first processes those of torch before all others."""

    def _assign_work_unit(self, node: Any) -> None:
        is_for_torch = node in self.nodes[:_PROCESSES]
        for file in self.workqueue:
            if _needs_torch(file) == is_for_torch:
                self.workqueue.move_to_end(file, last=False)
                break
        super()._assign_work_unit(node)


@cache
def _needs_torch(file: str) -> bool:
    return file.startswith("tests/frontends/") or "torch_fork_server" in (_ROOT / file).read_text()

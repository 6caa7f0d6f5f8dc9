"""The thread of a plane that ends kernels of NCCL when a peer is missing.

Such a kernel waits for its peers without end, and so does whoever waits for the kernel, such as the user's program in
``torch.cuda.synchronize()``. Only an abort of the communicator ends the kernel. Aborting may block, so
`DataPlane.abort`, which must not block, leaves it to this thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from hvdlite.log import logger

_LOOK_S: Final = 0.2


class Watcher:
    """Calls ``look`` when it is woken, and every 0.2 s while that returns True, until it is closed."""

    def __init__(self, look: Callable[[], bool]) -> None:
        self._look = look
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="hvdlite-nccl", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Makes the thread look. Any thread; never blocks."""
        self._wake.set()

    def close(self) -> None:
        """Ends the thread."""
        self._is_closing = True
        self._wake.set()
        self._thread.join()

    def _serve(self) -> None:
        looks_again = False
        while not self._is_closing:
            self._wake.wait(_LOOK_S if looks_again else None)
            self._wake.clear()
            try:
                looks_again = self._look()
            except Exception:  # the edge of a thread, which must live on for the abort
                logger.exception("watching NCCL failed")
                looks_again = True

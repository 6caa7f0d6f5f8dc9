"""What torch calls at the end of ``import torch``, so that it knows the back end ``hvdlite``.

It is installed as `hvdlite_torch`. Every program that imports torch runs it, so it imports nothing of hvdlite, and
never raises.
"""

from __future__ import annotations

import os
from typing import Any


def register() -> None:
    """Makes the back end known to torch.distributed, and the default for CPUs if HVDLITE_TORCH_DEFAULT is 1."""
    try:
        from torch import distributed

        if not distributed.is_available() or hasattr(distributed.Backend, "HVDLITE"):
            return
        distributed.Backend.register_backend("hvdlite", _open, extended_api=True, devices=["cpu"])
        if os.environ.get("HVDLITE_TORCH_DEFAULT") == "1":
            distributed.Backend.default_device_backend_map["cpu"] = "hvdlite"
    except Exception:  # of a torch that differs. Whoever asks for the back end is told that there is none.
        return


def _open(options: Any, backend_options: Any) -> Any:
    from hvdlite.torch.distributed import open_group

    return open_group(options)

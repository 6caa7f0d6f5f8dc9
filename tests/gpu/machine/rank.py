"""``python -m tests.gpu.machine.rank MODULE ...``: runs a module as a rank that has GPUs, real ones or fakes."""

from __future__ import annotations

import os
import runpy
import sys

from tests.gpu.machine.place import IS_MACHINE, share_gpus

if __name__ == "__main__":
    if IS_MACHINE:
        said = share_gpus(int(os.environ["HVDLITE_LOCAL_RANK"]), int(os.environ["HVDLITE_LOCAL_SIZE"]))
        if os.environ["HVDLITE_RANK"] == "0":
            print(f"# {said}", flush=True)
    else:
        from tests.gpu.torch_fake import preload  # noqa: F401 - before PyTorch
        from tests.gpu.torch_fake.ranks import with_gpus

        with_gpus()
    program, sys.argv = sys.argv[1], sys.argv[1:]
    if program.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)

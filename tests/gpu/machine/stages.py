"""The stages of a machine with GPUs, the most important ones first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tests.gpu.machine.running import Stage
from tests.harness.patience import PATIENCE_S

RANKS: Final = 2
_HVDRUN: Final = (sys.executable, "-m", "hvdlite.launcher.cli", "-np", str(RANKS))
_RANK: Final = (sys.executable, "-m", "tests.gpu.machine.rank")
_OF_SIZE: Final = {"": ("--iters", "100"), "-1G": ("--iters", "5", "--warmup", "1")}
_TESTS: Final = (sys.executable, "-m", "pytest", "-q")


def stages(folder: Path, is_tiny: bool) -> list[Stage]:
    """All stages, which write to ``folder``; with little to do if they are only to show that they work."""
    sizes = [("", "1K,64K")] if is_tiny else [("", "1K:1M:*4"), ("-large", "4M,16M,128M"), ("-1G", "1G")]
    large = "64K" if is_tiny else "1K,64K,1M"
    models = ("tiny",) if is_tiny else ("resnet50", "transformer")
    fewer = ("--iters", "2", "--warmup", "0") if is_tiny else ()
    many = ("3", "1K") if is_tiny else ("100", "4K")
    fused = [(3, "1K")] if is_tiny else [(20, "1K"), (20, "1M"), (100, "1K"), (100, "64K"), (100, "1M"), (1000, "4K")]
    traced = "tiny" if is_tiny else "layers"

    def bench(name: str, *options: str, compares: bool = True) -> tuple[str, ...]:
        against = ("--compare", "nccl") if compares and not is_tiny else ()  # PyTorch for CPUs has no NCCL
        device = ("--device", "cuda", "--json", str(folder / f"{name}.json"))
        return (*_HVDRUN, *_RANK, "hvdlite.bench", *device, *against, *options, *fewer)

    every = [
        Stage("facts", 60, [(sys.executable, "-m", "tests.gpu.machine.facts")]),
        Stage("collectives", 150, [(*_TESTS, "tests/gpu/test_torch_sizes.py")]),
        Stage("streams", 120, [(*_TESTS, "tests/gpu/test_torch.py")]),
        Stage("lost", 120, [(*_TESTS, "tests/gpu/test_torch_lost.py")]),
        *(
            Stage(f"bandwidth{which}", 70, [bench(f"bandwidth{which}", "--sizes", some, *_OF_SIZE.get(which, ()))])
            for which, some in sizes
        ),
        Stage("calls", 60, [bench("calls", "--many", *many)]),
        Stage("parts", 60, [bench("parts", "--parts", "--sizes", large, compares=False)]),
        *(
            Stage(name, 100, [bench(name, *_train(model, precision), compares=False)])
            for model in models
            for precision in ("float32", "bfloat16")
            for name in [f"{model}-{precision}"]
        ),
        Stage(
            "trace",
            60,
            [bench("trace", *_train(traced, "float32"), "--trace", str(folder / "trace-steps.json"), compares=False)],
        ),
        Stage("example", 60, [(*_HVDRUN, *_RANK, "examples/torch_gpu.py", "--epochs", "1" if is_tiny else "12")]),
        Stage("frontend", 200, [(*_TESTS, "tests/gpu/test_torch_scenarios.py")]),
        Stage("frontend-staged", 100, [(*_TESTS, "tests/gpu/test_torch_staged.py")]),
        Stage(
            "fusion",
            100,
            [
                bench(f"fusion-{count}-{size}", "--many", str(count), size, "--fuse", compares=False)
                for count, size in fused
            ],
        ),
        Stage(
            "staged",
            70,
            [bench("staged", "--sizes", "1K,64K" if is_tiny else "64K,1M,16M,128M")],
            {"HVDLITE_GPU_PLANE": "staged"},
        ),
    ]
    return [stage._replace(limit_s=PATIENCE_S) for stage in every] if is_tiny else every


def _train(model: str, precision: str) -> tuple[str, ...]:
    return "--train", "torch", "--model", model, "--precision", precision

"""Limits of cores and memory, as control groups of either version set them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdlite.host.cgroups import cores_limit, memory_limit


def groups(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A tree of control groups with those files, and what /proc/self/cgroup says."""
    for name, content in files.items():
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tree" / name).write_text(content)
    (folder / "own").write_text(own)
    return folder / "tree", folder / "own"


@pytest.mark.parametrize(
    ("own", "files", "cores", "memory"),
    [
        ("0::/job/step\n", {"job/cpu.max": "150000 100000\n", "job/memory.max": "1000\n"}, 1.5, 1000),
        ("0::/job/step\n", {"job/step/cpu.max": "max 100000\n", "job/step/memory.max": "max\n"}, None, None),
        ("0::/job/step\n", {"job/cpu.max": "400000 100000", "job/step/cpu.max": "200000 100000"}, 2.0, None),
        ("0::/somewhere/else\n", {"cpu.max": "50000 100000\n", "memory.max": "77\n"}, 0.5, 77),
        (
            "5:cpu,cpuacct:/box\n4:memory:/box\n",
            {
                "cpu/box/cpu.cfs_quota_us": "300000\n",
                "cpu/box/cpu.cfs_period_us": "100000\n",
                "memory/box/memory.limit_in_bytes": "5000\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            3.0,
            5000,
        ),
        ("5:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None, None),
        ("", {}, None, None),
    ],
)
def test_limits_of_control_groups(
    tmp_path: Path, own: str, files: dict[str, str], cores: float | None, memory: int | None
) -> None:
    tree = groups(tmp_path, own, files)
    assert cores_limit(*tree) == cores
    assert memory_limit(*tree) == memory

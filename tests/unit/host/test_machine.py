"""The facts about this machine."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest

from hvdlite.host.machine import describe_machine


def test_the_facts_about_this_machine_fit_into_json() -> None:
    facts = json.loads(json.dumps(describe_machine()))
    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert 0 < facts["free_memory"] <= facts["memory"]
    assert facts["files"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_gpus_are_what_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100, 81559, 550.54'\necho 'NVIDIA H100, 81559, 550.54'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert describe_machine()["gpus"] == [{"name": "NVIDIA H100", "memory_mib": "81559", "driver": "550.54"}] * 2

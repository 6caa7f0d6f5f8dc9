"""GPUs that hvdrun counts, and gives to ranks, as its command line and CUDA_VISIBLE_DEVICES say."""

from __future__ import annotations

import os
import re

import pytest

from hvdlite.launcher.cli import main

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("listed", "words", "ranks"),
    [
        ("0,1", "-np auto", 2),
        ("0,1", "-np auto -ppn 8", 2),
        ("0,1", "-np auto -ppn 1", 1),
        ("0,1", "-np auto -ppn 8 --gpus-per-proc 1", 2),
        ("0,1,2", "--gpus-per-proc 1", 3),
        ("0,1,2", "--gpus-per-proc 2", 1),
        ("0,1,2", "-H localhost --gpus-per-proc 1 -ppn 2", 2),
        ("0,1", "-np auto -H localhost,localhost", 2),
        ("0,1", "-np auto -H localhost,localhost --gpus-per-proc 1", 2),
        ("NoDevFiles", "-np auto", CORES),
        ("0,0", "-np auto", CORES),
        ("0,1", "-H far:2,far:4 -np 6 --gpus-per-proc 1", 6),
    ],
)
def test_ranks_are_as_many_as_the_gpus_allow(
    listed: str, words: str, ranks: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert main([*words.split(), "--dry-run", "true"]) == 0
    shown = capfd.readouterr()
    assert shown.out.startswith(f"{ranks} rank(s) on 1 host(s)\n")
    assert shown.err == ""


@pytest.mark.parametrize(
    ("listed", "words", "message"),
    [
        ("0,0", "-np 2 --gpus-per-proc 1", "localhost has 0 GPU(s), too few for 2 rank(s)"),
        ("NoDevFiles", "--gpus-per-proc 1", "no host has 1 GPU(s) for a rank; see nvidia-smi"),
        ("0,1", "-np 3 -ppn 3 --gpus-per-proc 1", "localhost has 2 GPU(s), too few for 3 rank(s)"),
    ],
)
def test_too_few_gpus_are_told(
    listed: str, words: str, message: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert main([*words.split(), "--dry-run", "true"]) == 2
    assert re.fullmatch(f"hvdrun: .*{re.escape(message)}.*\n", capfd.readouterr().err)


def test_a_list_without_a_gpu_of_that_name_does_not_disturb_a_job(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "x" * 5000)
    assert main(["-np", "1", "true"]) == 0
    assert capfd.readouterr().err == ""

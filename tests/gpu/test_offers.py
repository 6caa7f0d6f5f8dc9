"""What ranks tell each other of their GPUs and of NCCL before they connect, and what they conclude from it alike."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.errors import HorovodInternalError
from hvdlite.planes.local import LocalPlane
from hvdlite.planes.nccl import offers
from hvdlite.planes.nccl.offers import ID_BYTES, Offer, exchange, obstacle, sharing
from hvdlite.tensors.buffer import Spans
from tests.contract.joined import shm
from tests.gpu.fake import Fakes
from tests.gpu.program import Gpu
from tests.harness import process_ranks, thread_ranks
from tests.harness.patience import NEVER_SILENT, PATIENCE_S

UNIQUE = "ab" * ID_BYTES
A, B = "GPU a", "GPU b"


def _offer(gpu: str = A, **fields: Any) -> Offer:
    return Offer(version=22304, gpu=gpu, visible=2, unique=UNIQUE)._replace(**fields)


TWO = "ranks 10, 11 use one GPU, number 0 of here (GPU a)"
ADD = "; add torch.cuda.set_device(hvd.local_rank()) after hvd.init(), before anything is on a GPU"
REPAIR = "); repair that, or set HVDLITE_GPU_PLANE=staged, which does without it"
SHARED: dict[str, Any] = {"may_share": True, "version": 23000}
# Offers, the hosts of their ranks, and what all ranks are told.
TABLE: dict[str, tuple[list[Offer], str, str]] = {
    "a GPU each": ([_offer(), _offer(B, ordinal=1)], "here here", ""),
    "a GPU each, and both see it as their first": ([_offer(), _offer(B)], "here here", ""),
    "one GPU": ([_offer(), _offer()], "here here", TWO + ADD),
    "one GPU, one host under two names": ([_offer(), _offer()], "here there", TWO + ADD),
    "one GPU of three": (
        [_offer(), _offer(B), _offer()],
        "here here here",
        "ranks 10, 12 use one GPU, number 0 of here (GPU a), and see 2 GPU(s) for 3 ranks there; start one rank for "
        "each GPU, as hvdrun -np auto does, or set NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30)",
    ),
    "two GPUs, two ranks on each": (
        [_offer(visible=4), _offer(B, visible=4), _offer(visible=4), _offer(B, visible=4, ordinal=1)],
        "here here here here",
        f"ranks 10, 12 use one GPU, number 0 of here (GPU a){ADD}; ranks 11, 13 use one GPU, number 0 of here (GPU b)"
        + ADD,
    ),
    "on purpose": ([_offer(**SHARED), _offer(**SHARED)], "here here", ""),
    "on purpose, but NCCL is too old": ([_offer(may_share=True), _offer(may_share=True)], "here here", TWO + ADD),
    "on purpose, but on one rank only": (
        [_offer(**SHARED), _offer(version=23000)],
        "here here",
        TWO + ADD,
    ),
    "hosts that NCCL takes for two": ([_offer(host_id="x"), _offer(host_id="y")], "here here", ""),
    "hosts that NCCL takes for one": ([_offer(host_id="x"), _offer(host_id="x")], "here here", TWO + ADD),
    "different versions": (
        [_offer(), _offer(B, version=22903), _offer("c")],
        "here here here",
        "NCCL needs the same version on all ranks, but there is 2.23.4 on ranks 10, 12; 2.29.3 on rank 11; install the "
        "same everywhere.",
    ),
    "no NCCL on one": (
        [_offer(), Offer("there is none.")],
        "here here",
        f"NCCL cannot be used (rank 11: there is none.{REPAIR}",
    ),
    "different reasons": (
        [Offer("it is old."), Offer("there is none."), Offer("it is old.")],
        "here here here",
        f"NCCL cannot be used (ranks 10, 12: it is old.; rank 11: there is none.{REPAIR}",
    ),
}


@pytest.mark.parametrize("what", TABLE)
def test_what_is_told(what: str) -> None:
    made, hosts, told = TABLE[what]
    assert obstacle(made, range(10, 10 + len(made)), hosts.split()) == told


ENABLED = "NCCL_MULTI_RANK_GPU_ENABLE"


@pytest.mark.parametrize(
    ("environ", "of_user", "of_system", "host_id", "may_share"),
    [
        ({}, None, None, "", False),
        ({"NCCL_HOSTID": "x", ENABLED: "1"}, None, None, "x", True),
        ({ENABLED: "0"}, None, None, "", False),
        ({ENABLED: ""}, None, None, "", False),
        ({}, f"# NCCL\n\n{ENABLED} = 1\nNCCL_HOSTID=y=z\n", None, "y=z", True),
        ({}, None, f"{ENABLED}=1\n", "", True),
        ({}, f"#{ENABLED}=1\n{ENABLED}\n", None, "", False),
        ({}, f"{ENABLED}=0", f"{ENABLED}=1", "", False),
        ({ENABLED: "0", "NCCL_HOSTID": "x"}, f"{ENABLED}=1\nNCCL_HOSTID=y", None, "x", False),
    ],
)
def test_what_the_settings_of_nccl_say(
    environ: dict[str, str], of_user: str | None, of_system: str | None, host_id: str, may_share: bool, tmp_path: Path
) -> None:
    for name, text in (("user", of_user), ("system", of_system)):
        if text is not None:
            (tmp_path / name).write_text(text)
    environ = {**environ, "NCCL_CONF_FILE": str(tmp_path / "user")}
    assert sharing(environ, tmp_path / "system") == {"host_id": host_id, "may_share": may_share}


def test_a_long_name_of_a_host_is_told_by_its_hash(tmp_path: Path) -> None:
    names = [*(text * 1000 for text in "a\0\udc80\U0001f600"), "a" * 1001, "a" * 64, "a" * 63 + "\udc80"]
    ids = [sharing({"NCCL_HOSTID": name, "NCCL_CONF_FILE": str(tmp_path)}, tmp_path)["host_id"] for name in names]
    assert len(set(ids)) == len(names)
    assert {len(each) for each in ids} == {64}
    made = [_offer(host_id=each) for each in ids]
    with shm.PLANE.open(len(made), PATIENCE_S) as planes:
        assert thread_ranks(len(made), lambda rank: exchange(made[rank], planes[rank])) == [made] * len(made)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("lack", ['"\\\0é', "\U0001f600\udc80"])
def test_all_ranks_get_all_offers(size: int, lack: str) -> None:
    made = [_offer(f"GPU {rank}", lack=lack * 1000 * (rank == 1)) for rank in range(size)]
    expected = [each._replace(lack=each.lack[:400]) for each in made]
    with shm.PLANE.open(size, PATIENCE_S) as planes:
        assert thread_ranks(size, lambda rank: exchange(made[rank], planes[rank])) == [expected] * size


class _Forging(LocalPlane):
    """Rank 1 of 2; says the same for rank 0 as it has been told."""

    rank, size = 1, 2

    def __init__(self, said: bytes) -> None:
        super().__init__()
        self._said = np.frombuffer(said.ljust(offers._BYTES, b"\0")[: offers._BYTES], np.uint8)

    def allgather(self, streams: list[Spans]) -> None:  # type: ignore[override]
        ctypes.memmove(int(streams[0][0, 1]), self._said.ctypes.data, offers._BYTES)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\xff" * offers._BYTES,
        b"[" * offers._BYTES,
        b"[]",
        b"{}",
        json.dumps([*_offer()][:-1]).encode(),
        json.dumps([*_offer(), 1]).encode(),
        json.dumps([*_offer(version="2.23")]).encode(),
        json.dumps([*_offer(may_share=7)]).encode(),
        json.dumps([*_offer(unique="ab")]).encode(),
        json.dumps([*_offer(unique="xy" * ID_BYTES)]).encode(),
    ],
)
def test_an_offer_that_is_none_is_refused(said: bytes) -> None:
    with pytest.raises(HorovodInternalError, match="member 0 of the group made no valid offer for NCCL"):
        exchange(_offer(), _Forging(said))


def _on_one_gpu(folder: str, ordinal: int) -> list[float]:
    gpu = Gpu(folder, ordinal)
    try:
        total: list[float] = gpu.collectives.allreduce(gpu.array(np.ones(2)), op=hvd.Sum).on_device().tolist()
    except HorovodInternalError:
        with pytest.raises(HorovodInternalError):
            gpu.collectives.allreduce(gpu.array(np.ones(2)), op=hvd.Sum)
        gpu.leave()
        raise
    gpu.leave()
    return total


@pytest.mark.parametrize("ordinal", [0, 1])
def test_ranks_that_forgot_to_choose_a_gpu_are_told_the_line_to_add(loaded_fakes: Fakes, ordinal: int) -> None:
    environ = {**NEVER_SILENT, "NCCL_MULTI_RANK_GPU_ENABLE": "0"}
    outcomes = process_ranks(2, _on_one_gpu, str(loaded_fakes.folder), ordinal, environ=environ)
    for outcome in outcomes:
        assert f"ranks 0, 1 use one GPU, number {ordinal} of " in outcome.message, outcome.output
        assert "; add torch.cuda.set_device(hvd.local_rank()) after hvd.init()" in outcome.message


def _without_nccl(folder: str) -> None:
    gpu = Gpu(folder)
    if hvd.rank() == 0:
        gpu.fakes.fail("ncclGetUniqueId", 2)
    try:
        gpu.collectives.allreduce(gpu.array(np.ones(2)), op=hvd.Sum)
    finally:
        gpu.leave()


def test_what_keeps_one_rank_from_using_nccl_is_told_to_all(loaded_fakes: Fakes) -> None:
    for outcome in process_ranks(2, _without_nccl, str(loaded_fakes.folder), environ=NEVER_SILENT):
        assert "NCCL cannot be used (rank 0: ncclGetUniqueId of NCCL 2.32.3 failed: a system error" in outcome.message
        assert outcome.message.endswith(REPAIR)


@pytest.mark.parametrize(
    ("everywhere", "by_rank"),
    [
        ({}, {}),
        ({"NCCL_MULTI_RANK_GPU_ENABLE": "0"}, {rank: {"NCCL_HOSTID": f"host {rank}"} for rank in range(2)}),
    ],
    ids=["as NCCL allows it", "as two hosts"],
)
def test_ranks_may_share_a_gpu_on_purpose(
    loaded_fakes: Fakes, everywhere: dict[str, str], by_rank: dict[int, dict[str, str]]
) -> None:
    folder, environ = str(loaded_fakes.folder), {**NEVER_SILENT, **everywhere}
    outcomes = process_ranks(2, _on_one_gpu, folder, 0, environ=environ, environ_by_rank=by_rank)
    assert [outcome.result() for outcome in outcomes] == [[2.0, 2.0]] * 2

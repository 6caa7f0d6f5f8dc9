"""Tensors on a device that no code of the host can touch, and that does collectives after they have been called.

Ranks are processes with the device of `tests.harness.device`: hvdlite has its addresses, and dies if it reads or writes
there.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.groups.choose import BY_DEVICE
from hvdlite.session import current
from hvdlite.settings import Start
from hvdlite.training.parameter_check import ParameterCheck
from tests.harness import process_ranks
from tests.harness.device import DEVICE, DeviceAdapter, DeviceArray, DevicePart, collectives, install
from tests.harness.patience import STALLED
from tests.multiproc.on_device import begin, every_collective, ones

# ---- results


def _touch() -> None:
    array = ones()
    assert array.on_device().tolist() == [1] * 4
    ctypes.string_at(array.address, 1)


def test_whoever_touches_the_memory_of_the_device_dies() -> None:
    (outcome,) = process_ranks(1, _touch)
    assert outcome.exit_code == -signal.SIGSEGV


def _every_collective() -> list[str]:
    plane = begin()
    failures = every_collective(collectives, DeviceArray.of)
    assert {kind for kind, _ in plane.given} == {"allreduce", "allgather", "reducescatter", "alltoall"}
    hvd.barrier()
    hvd.shutdown()
    return failures


@pytest.mark.parametrize(("size", "plane"), [(1, "auto"), (2, "auto"), (3, "zmq"), (3, "ring")])
def test_every_collective(size: int, plane: str) -> None:
    for outcome in process_ranks(size, _every_collective, environ={"HVDLITE_PLANE": plane, **STALLED}):
        assert outcome.result() == []


def _fused() -> list[tuple[str, int]]:
    plane = begin()
    arrays = [ones(count) for count in (1, 5, 9)]
    for _ in range(2):  # new, and known
        with current().everyone.burst():
            on_device = collectives.grouped_allreduce_async(arrays, name="on the device", op=hvd.Sum)
            in_memory = hvd.grouped_allreduce_async([np.ones(3, np.float32)] * 2, name="in memory", op=hvd.Sum)
        for result in hvd.synchronize(on_device):
            np.testing.assert_array_equal(result.on_device(), hvd.size())
        np.testing.assert_array_equal(hvd.synchronize(in_memory), hvd.size())
    hvd.shutdown()
    return plane.given


def test_tensors_of_the_device_run_as_one_and_none_of_the_host_among_them() -> None:
    assert [outcome.result() for outcome in process_ranks(2, _fused)] == [[("allreduce", 3)] * 2] * 2


def _joined() -> list[str]:
    """The last rank has no data; the sums that the others make, of known tensors and of new ones, have its zeros."""
    plane = begin()
    size, is_last = hvd.size(), hvd.rank() == hvd.size() - 1
    totals = [collectives.allreduce(ones(), name="known", op=hvd.Sum).on_device().tolist()]
    if not is_last:
        for name in ("known", "new"):
            totals.append(collectives.allreduce(ones(), name=name, op=hvd.Sum).on_device().tolist())
        with pytest.raises(hvd.HorovodInternalError, match=f"rank\\(s\\) {size - 1} have joined"):
            collectives.allgather(ones(), name="gathered")
    hvd.join()
    totals.append(collectives.allreduce(ones(), name="new", op=hvd.Sum).on_device().tolist())
    if is_last:
        assert plane.given.count(("zeros", 1)) == 2
        assert totals == [[size] * 4] * 2
    else:
        assert totals == [[size] * 4, [size - 1] * 4, [size - 1] * 4, [size] * 4]
    hvd.shutdown()
    return [kind for kind, _ in plane.given if kind != "zeros"]


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_that_has_joined_gives_zeros_that_the_device_makes(size: int) -> None:
    assert [outcome.result() for outcome in process_ranks(size, _joined, environ=STALLED)] == [["allreduce"] * 4] * size


# ---- errors


def _disagree() -> list[str]:
    begin()
    has_device = hvd.rank() == 1
    arguments: dict[str, dict[str, Any]] = {
        "allreduce": {},
        "reducescatter": {},
        "reduce": {"root_rank": 0},
        "allgather": {},
        "broadcast": {"root_rank": 0},
        "alltoall": {},
        "gather": {"root_rank": 0},
        "scatter": {"root_rank": 0},
    }
    texts = []
    for kind, keywords in arguments.items():
        for is_known in (False, True):
            if is_known:
                hvd.allreduce(np.ones(12, np.float32), name=kind)
            function = getattr(collectives if has_device else hvd, kind)
            with pytest.raises(hvd.Mismatch) as caught:
                function(ones(12) if has_device else np.ones(12, np.float32), name=kind, **keywords)
            texts.append(f"{kind}: {caught.value}")
    np.testing.assert_array_equal(collectives.allreduce(ones(), name="then").on_device(), 1)
    hvd.shutdown()
    return texts


def test_ranks_whose_tensors_are_on_different_devices_all_hear_which() -> None:
    told = [outcome.result() for outcome in process_ranks(3, _disagree, environ=STALLED)]
    assert told[0] == told[1] == told[2]
    assert len(told[0]) == 16
    for line in told[0]:
        kind, text = line.split(": ", 1)
        sides = f"ranks 0, 2 have cpu; rank 1 has {DEVICE.kind}"
        assert text == (f"ranks disagree about the device of tensor {kind!r}: {sides}. Submit the same on every rank.")


def _in_another_order() -> list[str]:
    kinds = ["one", "two"]
    for kind in kinds if Start.read().rank == 0 else reversed(kinds):
        BY_DEVICE[kind] = DevicePart
    hvd.init()
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        assert list(current().group_of(pair).planes) == ["cpu", *kinds]
    return list(current().everyone.planes)


def test_ranks_register_their_devices_in_any_order() -> None:
    outcomes = process_ranks(3, _in_another_order)
    assert [outcome.result() for outcome in outcomes] == [["cpu", "one", "two"]] * 3


def _only_on_one() -> list[str]:
    if Start.read().rank == 1:
        install()
    hvd.init()
    assert list(current().everyone.planes) == ["cpu"]
    alone = hvd.add_process_set([1])
    texts = []
    for kind in ("allreduce", "allgather", "alltoall", "reducescatter"):
        with pytest.raises(ValueError, match="found no toy device") as caught:
            getattr(collectives, kind)(ones(), name="x")
        texts.append(str(caught.value))
        np.testing.assert_array_equal(hvd.allreduce(np.ones(3), name="x"), 1)
    if alone.included():
        total = collectives.allreduce(ones(), op=hvd.Sum, process_set=alone)
        np.testing.assert_array_equal(total.on_device(), 1)
    hvd.barrier()
    hvd.shutdown()
    return texts


def test_a_device_that_only_some_ranks_have_is_refused_where_it_is_submitted() -> None:
    text = (
        "a tensor is on toy:0, but rank(s) 0 found no toy device at hvd.init(); run hvdrun --check-build in their "
        "environment to see why, or pass a copy on cpu"
    )
    assert [outcome.result() for outcome in process_ranks(2, _only_on_one, environ=STALLED)] == [[text] * 4] * 2


def _without_gpus() -> None:
    hvd.init()
    assert current().everyone.planes.keys() == {"cpu"}
    hvd.barrier()
    assert not [name for name in sys.modules if name.startswith(("hvdlite.planes.nccl", "hvdlite.cuda.driver"))]
    hvd.shutdown()


def test_a_host_without_gpus_does_not_even_import_what_is_for_them() -> None:
    for outcome in process_ranks(2, _without_gpus, environ={**STALLED, "CUDA_VISIBLE_DEVICES": ""}):
        outcome.result()


def _adasum() -> str:
    begin()
    with pytest.raises(ValueError, match="Adasum") as caught:
        collectives.allreduce(ones(), op=hvd.Adasum)
    hvd.shutdown()
    return str(caught.value)


def test_adasum_is_for_cpus() -> None:
    (outcome,) = process_ranks(1, _adasum)
    assert outcome.result() == "Adasum is for tensors in CPU memory, not on toy:0; pass a copy in CPU memory"


def _parameters() -> None:
    begin()
    parameters = [("weight", ones()), ("bias", ones(2))]
    check = ParameterCheck[DeviceArray](lambda parameter, _: DeviceAdapter().buffer(parameter))
    check.watch(parameters, parameters)
    group = current().everyone
    check.read(group)
    check.submit(group)
    hvd.barrier()
    check.conclude(group)
    hvd.shutdown()


def test_parameters_on_a_device_are_not_compared() -> None:
    for outcome in process_ranks(2, _parameters, environ={"HVDLITE_CHECK_PARAMETERS": "1"}):
        outcome.result()

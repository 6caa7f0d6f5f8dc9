"""``horovod.common`` and ``horovod.runner`` behave as scripts expect."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from hvdlite import builds
from hvdlite.errors import HorovodInternalError
from hvdlite.horovod import checks, launch
from hvdlite.horovod.basics import HorovodBasics
from hvdlite.horovod.environment import get_env_rank_and_size
from hvdlite.horovod.exceptions import HorovodVersionMismatchError, HostsUpdatedInterrupt
from hvdlite.horovod.runner import run
from tests.compat import calls


def test_the_exceptions_are_what_scripts_catch() -> None:
    assert issubclass(HorovodInternalError, RuntimeError)
    interrupt = pickle.loads(pickle.dumps(HostsUpdatedInterrupt(skip_sync=True)))
    assert isinstance(interrupt, RuntimeError)
    assert interrupt.skip_sync
    assert not HostsUpdatedInterrupt().skip_sync
    error = HorovodVersionMismatchError("torch", "1.0", "2.0")
    assert isinstance(error, ImportError)
    assert (error.name, error.version, error.installed_version) == ("torch", "1.0", "2.0")


@pytest.mark.parametrize(("length", "parts"), [(0, 3), (2, 3), (7, 3), (9, 3), (4, 1)])
def test_lists_are_split_evenly(length: int, parts: int) -> None:
    pieces: list[Sequence[int]] = checks.split_list(list(range(length)), parts)
    assert [item for piece in pieces for item in piece] == list(range(length))
    assert len(pieces) == parts
    assert len(pieces[0]) - len(pieces[-1]) <= 1


def test_small_questions() -> None:
    assert [checks.is_iterable(thing) for thing in ([], "a", 3, None)] == [True, True, False, False]
    assert [number for number in range(9) if checks.num_rank_is_power_2(number)] == [1, 2, 4, 8]
    assert [checks.is_version_greater_equal_than(ver, "2.10.0") for ver in ("2.9.1", "2.10.0+cpu", "2.11.0a1")] == [
        False,
        True,
        True,
    ]
    with pytest.raises(ValueError, match="'1.2.3' to compare it with"):
        checks.is_version_greater_equal_than("1.0", "1.0")
    assert checks.extension_available("torch")
    assert not checks.extension_available("tensorflow", verbose=True)
    checks.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match=r"horovod\.mxnet is not available"):
        checks.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__)


@pytest.mark.parametrize("has_gpu", [True, False])
def test_the_front_end_that_takes_tensors_on_gpus(has_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "cuda_built", lambda: has_gpu)
    assert [checks.gpu_available(name) for name in ("torch", "tensorflow", "mxnet")] == [has_gpu, False, False]


def test_variables_are_set_for_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_SET", "before")
    with checks.env(TEST_SET=None, TEST_UNSET="inside"):
        assert os.environ["TEST_SET"] == "before"
        assert os.environ["TEST_UNSET"] == "inside"
    assert os.environ["TEST_SET"] == "before"
    assert "TEST_UNSET" not in os.environ


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        (dict(HVDLITE_RANK="2", HVDLITE_SIZE="3"), (2, 3)),
        (dict(HOROVOD_RANK="1", HOROVOD_SIZE="4", HOROVOD_LOCAL_SIZE="4"), (1, 4)),
    ],
)
def test_the_rank_is_known_before_init(
    variables: dict[str, str], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", variables)
    assert get_env_rank_and_size() == expected


def test_the_deprecated_average_is_translated() -> None:
    choose = checks.get_average_backwards_compatibility_fun(None)
    assert [choose(None, None), choose(4, None)] == [0, 4]
    with pytest.warns(DeprecationWarning, match="pass op instead"):
        assert [choose(None, True), choose(None, False)] == [0, 1]
    with pytest.raises(ValueError, match="exclude each other"):
        choose(1, True)


@pytest.mark.parametrize("where", [builds, HorovodBasics(__file__, "mpi_lib"), checks])
def test_builds_are_told_before_init(where: Any) -> None:
    # What is said of CUDA and NCCL depends on the machine: tests/gpu/test_builds.py.
    names = ["mpi_built", "gloo_built", "ddl_built", "ccl_built", "rocm_built"]
    assert [getattr(where, name)() for name in names] == [False, True, False, False, False]


def test_there_is_no_mpi() -> None:
    assert (builds.mpi_enabled(), builds.gloo_enabled()) == (False, True)
    with pytest.raises(ValueError, match="does not use MPI"):
        builds.mpi_threads_supported()
    with pytest.raises(ValueError, match="hvdlite has not been initialized"):
        HorovodBasics().rank()


def test_run_takes_what_horovods_does() -> None:
    results = run(calls.add_up, (1.0,), num_proc=2, use_gloo=True, network_interfaces=["lo"], verbose=False)
    assert results == [(0, 2, 3.0), (1, 2, 3.0)]
    with pytest.warns(DeprecationWarning, match="use num_proc"):
        assert run(calls.add_up, (1.0,), hosts="localhost:1", np=1) == [(0, 1, 1.0)]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (dict(min_num_proc=2), "min_num_proc is not supported: .* no elastic jobs"),
        (dict(max_np=2), "no elastic jobs"),
        (dict(host_discovery_script="./hosts.sh"), "no elastic jobs"),
        (dict(use_mpi=True), "no MPI"),
        (dict(ssh_identity_file="/no/key"), "there is no file '/no/key'"),
        (dict(ssh_port=99999), "is not in the range"),
        (dict(executable="python3.8"), "no workers with another Python"),
        (dict(hosts="localhost:1", hostfile="hosts"), "exclude each other"),
    ],
)
def test_run_says_what_it_cannot(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(calls.where, **option)


def test_the_command_line_is_hvdruns(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    program = "import horovod; print(horovod.__version__)"
    monkeypatch.setattr(sys, "argv", ["horovodrun", "-np", "1", sys.executable, "-c", program])
    launch.run_commandline()
    assert capfd.readouterr().out == "[0]<stdout>:0.28.1\n"
    monkeypatch.setattr(sys, "argv", ["horovodrun", "-np", "0", "true"])
    with pytest.raises(SystemExit) as ended:
        launch.run_commandline()
    assert ended.value.code == 2

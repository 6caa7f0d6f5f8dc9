"""The benchmark: what it accepts, its formulas, and a short real run of every mode. No time decides anything."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from benchmarks import targets
from hvdlite.bench.cli import bench, main
from hvdlite.bench.measuring.collectives import COLLECTIVES
from hvdlite.bench.measuring.pattern import fill, pattern
from hvdlite.bench.measuring.report import Column, Row, Study, make_row, ratio_columns, ratio_of, to_json, to_markdown
from hvdlite.bench.measuring.timing import BLOCKS, Candidate, Measured, default_iterations, measure
from hvdlite.bench.sizes import parse_sizes
from hvdlite.launcher.agent.answers import free_port
from tests.harness import process_ranks
from tests.harness.benchmarks import rows_of
from tests.harness.forkserver import TORCH
from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import COMMAND


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1", [1]),
        ("1K,256k, 4M", [1 << 10, 256 << 10, 4 << 20]),
        ("1GiB,2KB", [1 << 30, 2 << 10]),
        ("1K:64K:*4", [1 << 10, 4 << 10, 16 << 10, 64 << 10]),
        ("1K:5K:*2,3", [1 << 10, 2 << 10, 4 << 10, 3]),
    ],
)
def test_sizes_are_lists_and_ranges(text: str, sizes: list[int]) -> None:
    assert list(parse_sizes(text)) == sizes


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5K", "K", "1T", "1,", "1K:2K", "1K:2K:4", "1K:2K:*1", "2K:1K:*2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size"):
        parse_sizes(text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sizes", "1K:2K"], "first:last:*factor"),
        (["--op", "reduce"], "allreduce"),
        (["--dtype", "float8"], "bfloat16"),
        (["--iters", "0"], "--iters"),
        (["--plane", "rdma"], "zmq"),
        (["--many", "10"], "--many"),
        (["--many", "10", "no"], "not a size"),
        (["--train", "--dtype", "int8"], "--dtype means nothing with --train"),
        (["--many", "2", "1K", "--sizes", "1K"], "--sizes means nothing with --many"),
        (["--many", "2", "1K", "--train"], "exclude each other"),
        (["--train", "keras", "--registered"], "--registered means nothing with --train"),
        (["--train", "jax"], "'torch', 'keras'"),
        (["--json", "no/such/folder/file"], "no/such/folder"),
        (["--markdown", ""], "the name is empty"),
        (["--compare", "gloo", "--dtype", "int16"], "Gloo does not take int16"),
        (["--compare", "gloo,impi"], "cannot compare with 'impi'; choose from gloo, nccl; 'python -m benchmarks'"),
        (["--compare", "nccl"], "add --device cuda"),
        (["--fuse", "--many", "2", "1K"], "--fuse needs --many on --device cuda"),
        (["--parts"], "--parts needs --device cuda"),
        (["--parts", "--many", "2", "1K"], "exclude each other"),
        (["--train", "--model", "tiny"], "--model needs --train on --device cuda"),
        (["--precision", "bfloat16", "--device", "cuda"], "--precision needs --train on --device cuda"),
        (["stray"], "stray"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_targets_are_for_some_numbers_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert targets.main([]) == 2
    assert "there are targets for 2 or 4 ranks only" in capsys.readouterr().err


def test_rank_0_speaks_for_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HVDLITE_RANK", "1")
    monkeypatch.setenv("HVDLITE_SIZE", "2")
    assert main(["--iters", "0"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("arguments", [["--compare", "gloo"], ["--train"], ["--dtype", "bfloat16"]])
def test_without_torch_the_line_says_how_to_get_it(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(arguments) == 2
    assert "pip install 'hvdlite[torch]'" in capsys.readouterr().err


def test_without_tensorflow_the_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for variable in ("KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(variable, "")  # to be put back
    assert main(["--train", "keras"]) == 2
    said = capsys.readouterr().err
    assert "--train keras needs TensorFlow and Keras 3" in said
    assert "pip install 'hvdlite[tensorflow,keras]'" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("given", [["--train"], ["--train", "torch"], ["--train", "--iters", "3"]])
def test_training_is_that_of_torch_unless_keras_is_named(given: list[str]) -> None:
    assert bench.make_context("bench", given).params["framework"] == "torch"


@pytest.mark.parametrize(
    ("op", "size", "factor"),
    [("allreduce", 2, 1.0), ("allreduce", 4, 1.5), ("allgather", 4, 0.75), ("broadcast", 4, 1.0), ("allreduce", 1, 0)],
)
def test_bus_bandwidth(op: str, size: int, factor: float) -> None:
    assert COLLECTIVES[op].bus_factor(size) == pytest.approx(factor)


def test_a_row_has_the_median_the_minimum_and_the_bandwidths_of_the_median() -> None:
    row = make_row("x", 4, "allreduce", "float32", 2_000_000, np.array([3e-3, 1e-3, 2e-3]), bus_factor=1.5)
    assert (row.median_us, row.min_us, row.processor_us) == (2000, 1000, None)
    assert row.p99_us == pytest.approx(2980)
    assert (row.algbw_GBps, row.busbw_GBps) == (pytest.approx(1.0), pytest.approx(1.5))


def _group(**seconds: float) -> dict[str, Row]:
    return {
        system: make_row(system, 2, "allreduce", "float32", 4 << 20, np.array([time]))
        for system, time in seconds.items()
    }


def test_ratios_stand_on_hvdlites_own_rows_only() -> None:
    group = _group(hvdlite=1.0, registered=0.5, gloo=4.0)
    cells = [[column.text(row, group) for column in ratio_columns(list(group))] for row in group.values()]
    assert cells == [["0.250", "", "4.00×"], ["0.125", "", "8.00×"], ["", "", ""]]


@pytest.mark.parametrize(
    ("pairs", "interval"), [(5, None), (6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (15, (4, 12)), (20, (6, 15))]
)
def test_the_interval_of_a_ratio_is_that_of_the_sign_test(pairs: int, interval: tuple[int, int] | None) -> None:
    of_blocks = np.random.default_rng(0).permutation(pairs) + 1.0
    row = make_row("x", 2, "allreduce", "float32", 4, Measured(of_blocks, 0, of_blocks))
    other = make_row("y", 2, "allreduce", "float32", 4, Measured(np.ones(pairs), 0, np.ones(pairs)))
    assert ratio_of(row, other) == ((pairs + 1) / 2, interval)


def test_targets_are_held_against_the_better_mpi() -> None:
    group = _group(hvdlite=1.0, registered=0.5, gloo=4.4, impi=2.0, openmpi=0.7, memcpy=0.25, update=0.4)
    columns = targets.against_targets({}, None, 0).columns[-4:]
    assert [[column.text(row, group) for column in columns] for row in group.values()] == [
        ["4.40× (≥ 4)", "0.70× openmpi (missed 1)", "0.25×", "0.40×"],
        ["8.80× (≥ 6)", "1.40× openmpi (missed 1.5)", "0.50×", "0.80×"],
        *[[""] * 4] * 5,
    ]
    del group["impi"], group["openmpi"]
    assert columns[1].text(group["hvdlite"], group) == ""


def test_a_table_for_a_document() -> None:
    group = _group(hvdlite=1.0, gloo=4.0)
    study = Study("all of it", [Column("system", 9, lambda row, group: row.system)], iter(()))
    assert to_markdown(study, ["a note"], [group]) == (
        "all of it.\n\n- a note\n\n| system |\n| --- |\n| hvdlite |\n| gloo |\n"
    )


def test_large_tensors_are_iterated_less() -> None:
    iterations = [default_iterations(nbytes) for nbytes in (1, 1 << 20, 16 << 20, 1 << 30)]
    assert iterations == [500, 500, 32, BLOCKS]


@pytest.mark.parametrize("elements", [1, 2, 3, 10])
@pytest.mark.parametrize("size", [2, 5])
def test_one_wrong_element_is_found(elements: int, size: int) -> None:
    tensors = [np.zeros(elements, np.int8) for _ in range(size)]
    for rank, tensor in enumerate(tensors):
        fill(tensor, rank)
    right = {"allreduce": np.sum(tensors, axis=0), "allgather": np.concatenate(tensors), "broadcast": tensors[0]}
    for op, result in right.items():
        assert COLLECTIVES[op].is_right(result, size)
        result[-1] += 1
        assert not COLLECTIVES[op].is_right(result, size)
    assert pattern(0) != pattern(1)


def _measure_with_own_clock() -> Any:
    hvd.init()
    calls: list[str] = []
    ticks = iter(range(0, 10**9, 1000 * (1 + 2 * hvd.rank())))  # rank 1 takes 3 µs between two looks at the clock
    seconds = itertools.count(hvd.rank(), 1 + hvd.rank())

    class Counted(Candidate):
        def processor_s(self) -> float:  # one second for each block of rank 0, and two for each of rank 1
            return next(seconds)

    candidates = [Counted(label, lambda label=label: calls.append(label), lambda: True) for label in "ab"]
    measured = measure(candidates, iterations=2 * BLOCKS, warmup=1, clock=lambda: next(ticks))
    hvd.shutdown()
    return (
        "".join(calls),
        {label: taken.times.tolist() for label, taken in measured.items()},
        {label: taken.processor_s for label, taken in measured.items()},
        {label: taken.medians.tolist() for label, taken in measured.items()},
    )


def test_candidates_take_turns_and_the_slowest_rank_counts() -> None:
    for outcome in process_ranks(2, _measure_with_own_clock):
        calls, times, processor_s, medians = outcome.result()
        assert calls == ("aaabbb" + "bbbaaa") * (BLOCKS // 2) + "aaabbb"
        assert times == {label: pytest.approx([3e-6] * 2 * BLOCKS) for label in "ab"}
        assert medians == {label: pytest.approx([3e-6] * BLOCKS) for label in "ab"}
        assert processor_s == {label: pytest.approx(1.0) for label in "ab"}  # 3 s for two iterations and a warm-up


def _measure_what_is_wrong_on_rank_1() -> None:
    hvd.init()
    measure([Candidate("x", lambda: None, lambda: hvd.rank() != 1)], iterations=1, warmup=0)


def test_a_wrong_result_ends_the_benchmark_on_every_rank() -> None:
    for outcome in process_ranks(3, _measure_what_is_wrong_on_rank_1):
        assert (outcome.error, "x gave a wrong result on rank 1;" in outcome.message) == ("WrongResult", True)


def _bench(ranks: int, file: Path, *arguments: str) -> tuple[list[str], list[Row]]:
    """Runs the benchmark under hvdrun; the lines it printed and the rows it wrote."""
    command = [*COMMAND, "-np", str(ranks), sys.executable, "-m", "hvdlite.bench", *arguments, "--json", str(file)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    printed = ended.stdout.splitlines()
    assert all(line.startswith("[0]<stdout>:") for line in printed)
    return printed, rows_of(file, printed)


def _bench_with_torch(file: Path, *arguments: str) -> tuple[list[str], list[Row]]:
    """The same on two ranks that are forked from a process which has imported torch."""
    here = "127.0.0.1"
    for_gloo = {"MASTER_ADDR": here, "MASTER_PORT": str(free_port(here))}
    options = (*arguments, "--json", str(file))
    outcomes = process_ranks(2, main, options, environ=for_gloo, server=TORCH)
    assert [outcome.result() for outcome in outcomes] == [0, 0], outcomes[0].output
    warning = "[c10d] The hostname of the client socket cannot be retrieved"  # where no name server knows the address
    printed, nothing = ([line for line in each.output.splitlines() if warning not in line] for each in outcomes)
    assert nothing == []
    return printed, rows_of(file, printed)


def test_a_sweep(tmp_path: Path) -> None:
    printed, rows = _bench(2, tmp_path / "rows", "--sizes", "4,1K,1M", "--iters", "3", "--warmup", "0")
    assert [(row.system, row.ranks, row.op, row.dtype, row.bytes) for row in rows] == [
        ("hvdlite", 2, "allreduce", "float32", nbytes) for nbytes in (4, 1 << 10, 1 << 20)
    ]
    assert "data plane shm" in printed[0]
    for row in rows:
        assert 0 < row.min_us <= row.median_us
        assert row.algbw_GBps == pytest.approx(row.bytes / row.median_us / 1e3)
    assert to_json(rows) == (tmp_path / "rows").read_text()


@pytest.mark.parametrize("plane", ["ring", "zmq"])
def test_a_sweep_of_another_op_dtype_and_plane(plane: str, tmp_path: Path) -> None:
    options = ("--sizes", "1,1000", "--op", "allgather", "--dtype", "int16", "--plane", plane, "--iters", "2")
    printed, rows = _bench(3, tmp_path / "rows", *options)
    assert [(row.op, row.dtype, row.bytes) for row in rows] == [("allgather", "int16", 6), ("allgather", "int16", 996)]
    assert f"data plane {plane}" in printed[0]


@pytest.mark.usefixtures("torch_fork_server")
@pytest.mark.parametrize(
    ("mode", "ops"),
    [
        (("--op", "broadcast", "--sizes", "1K,64K"), ["broadcast", "broadcast"]),
        (("--many", "20", "1K"), ["allreduce x 20"]),
    ],
)
def test_a_comparison_with_gloo(mode: tuple[str, ...], ops: list[str], tmp_path: Path) -> None:
    options = ("--compare", "gloo", "--dtype", "bfloat16", "--iters", "3")
    printed, rows = _bench_with_torch(tmp_path / "rows", *mode, *options)
    assert [(row.system, row.op) for row in rows] == [(system, op) for op in ops for system in ("hvdlite", "gloo")]
    assert printed[1].split()[-4:] == ["time/gloo", "95", "%", "speed-up"]
    assert all(printed[2 + index].endswith("×") == (row.system == "hvdlite") for index, row in enumerate(rows))


def _interface_of_gloo() -> str | None:
    from hvdlite.bench.distributed import _use_network_of_job

    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    _use_network_of_job()
    return os.environ.get("GLOO_SOCKET_IFNAME")


@pytest.mark.usefixtures("torch_fork_server")
@pytest.mark.parametrize(("address", "interface"), [("127.0.0.1", "lo"), ("", None)])
def test_gloo_takes_the_interface_of_the_job(address: str, interface: str | None) -> None:
    (outcome,) = process_ranks(1, _interface_of_gloo, environ={"HVDLITE_ADDRESS": address}, server=TORCH)
    assert outcome.result() == interface


def test_registered_memory_and_the_limit_are_rows(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    options = ("--sizes", "1K,64K", "--registered", "--limit", "--iters", "2", "--markdown", str(table))
    printed, rows = _bench(2, tmp_path / "rows", *options)
    assert [row.system for row in rows] == ["hvdlite", "registered", "memcpy", "update"] * 2
    assert printed[1].split()[-4:] == ["time/update", "95", "%", "speed-up"]
    assert [line.count("|") for line in table.read_text().splitlines()[-10:]] == [18] * 10


@pytest.mark.usefixtures("torch_fork_server")
def test_training(tmp_path: Path) -> None:
    printed, rows = _bench_with_torch(tmp_path / "rows", "--train", "--iters", "1", "--warmup", "0")
    assert [row.system for row in rows] == ["bare", "hvdlite", "reduction", "gloo", "exposed"]
    assert printed[1].split()[-1] == "hidden"
    assert [line.endswith("%") for line in printed[2:]] == [row.system == "hvdlite" for row in rows]
    assert {(row.op, row.bytes, row.algbw_GBps) for row in rows} == {("train", 4 * 27_114_304, None)}


def test_the_wait_of_timed_steps_is_what_is_exposed() -> None:
    from hvdlite.bench.training.with_torch import WaitingStep, hidden_share

    waits: list[float] = []
    step = WaitingStep("hvdlite", lambda: waits.append(len(waits)), lambda: True, waits)
    for _ in range(2):
        step.is_right()
        step.block(2, 1, iter(range(8)).__next__)
    assert step.exposed == [1, 2, 4, 5]
    times = {"exposed": 1e-3, "reduction": 4e-3}
    rows = {label: make_row(label, 2, "train", "float32", 4, np.array([seconds])) for label, seconds in times.items()}
    assert hidden_share(rows) == pytest.approx(0.75)

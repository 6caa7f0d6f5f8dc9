"""Ranks that train with different parameters are told so once, by one of them, or all raise an error."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import hvdlite.torch as hvd
from hvdlite.session import current, group_of
from hvdlite.torch.optimizer.gradients import memory_of
from hvdlite.training.slices import Slices
from tests.frontends.scenarios import Report, Scenarios
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH

scenario = Scenarios(ranks=[1, 2, 3, pytest.param(4, marks=pytest.mark.faults)])
STEPS = 3


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def warnings_of_all_ranks() -> Iterator[Callable[[], list[list[str]]]]:
    """Collects the warnings of each rank within the context."""
    heard = _Heard()
    logger = logging.getLogger("hvdlite")
    logger.addHandler(heard)
    try:
        yield lambda: hvd.allgather_object([text for text in heard.texts if "HVDLITE_CHECK_PARAMETERS" in text])
    finally:
        logger.removeHandler(heard)


def model_of(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def wrapped(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options)


def take_steps(model: nn.Module, *optimizers: torch.optim.Optimizer, count: int = STEPS, passes: int = 1) -> None:
    for _ in range(count):
        for optimizer in optimizers:
            for _ in range(passes):
                model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def expect(told: Sequence[Sequence[str]], *patterns: str, on: int = 0) -> None:
    """Rank ``on`` warned once for each of ``patterns``, and nobody else; there is nothing to warn about alone."""
    wanted = patterns if hvd.size() > 1 else ()
    assert [len(texts) for texts in told] == [len(wanted) * (rank == on) for rank in range(hvd.size())], told
    assert all(re.search(pattern, text) for pattern, text in zip(wanted, told[on], strict=True)), told


def others() -> str:
    return ", ".join(map(str, range(1, hvd.size())))


@scenario
def a_forgotten_broadcast() -> None:
    with warnings_of_all_ranks() as told:
        model = model_of(hvd.rank())
        take_steps(model, wrapped(model))
        expect(
            told(),
            rf"^ranks begin to train with different parameters: '0.weight' is different, as are 3 more; rank\(s\) "
            rf"{others()} do not have those of rank 0. Call hvd.broadcast_parameters\(model.state_dict\(\), "
            r"root_rank=0\) before the first step, .* HVDLITE_CHECK_PARAMETERS=0 turns this check off$",
        )


@scenario
def it_has_come_with_the_gradients_of_the_first_step() -> None:
    with warnings_of_all_ranks() as told:
        model = model_of(hvd.rank())
        take_steps(model, wrapped(model), count=1)
        expect(told(), "'0.weight'")


@scenario
def checksums_are_submitted_in_a_burst_with_gradients() -> None:
    group = current().everyone
    bursts: list[list[str]] = []
    burst, submit, submit_all = group.burst, group.submit, group.submit_all

    @contextmanager
    def noted_burst() -> Iterator[None]:
        bursts.append([])
        with burst():
            yield
        bursts.append([])

    def noted_submit(entry: Any, *arguments: Any, **options: Any) -> Any:
        bursts[-1].append(entry.name)
        return submit(entry, *arguments, **options)

    def noted_submit_all(entries: Any, *arguments: Any, **options: Any) -> None:
        bursts[-1].extend(entry.name for entry in entries)
        submit_all(entries, *arguments, **options)

    for options, kind in (({}, "gradient"), ({"op": hvd.Adasum}, "delta")):
        bursts[:] = [[]]
        model = model_of(1)
        optimizer = wrapped(model, **options)
        with mock.patch.multiple(group, burst=noted_burst, submit=noted_submit, submit_all=noted_submit_all):
            take_steps(model, optimizer)
        checks = [[name.partition(".")[0] for name in names] for names in bursts if names]
        checks = [kinds for kinds in checks if {"checksum", "slice"} & {*kinds}]
        assert len(checks) == STEPS * (hvd.size() > 1)
        for kinds, expected in zip(checks, ["checksum", "slice", "slice"], strict=False):
            assert kinds[0] == kind
            assert kinds.count(expected) == 1


@scenario
def only_one_rank_and_only_one_parameter() -> None:
    with warnings_of_all_ranks() as told:
        model = model_of(1)
        if hvd.rank() == hvd.size() - 1:
            with torch.no_grad():
                model[1].bias[1] += 1e-6
        take_steps(model, wrapped(model))
        expect(told(), rf"'1.bias' is different; rank\(s\) {hvd.size() - 1} do not have those of rank 0")


@scenario
def the_same_values_in_other_places() -> None:
    for dtype, size in ((torch.float32, 64), (torch.float16, 4099), (torch.float64, 100_000)):
        for shift in (1, 2, size // 2, -8):
            with warnings_of_all_ranks() as told:
                weight = nn.Parameter(torch.arange(size).remainder(61).to(dtype))
                with torch.no_grad():
                    weight.copy_(weight.roll(shift * (hvd.rank() == hvd.size() - 1)))
                optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), [("weight", weight)])
                weight.sum().backward()
                optimizer.step()
                hvd.barrier()
                expect(told(), rf"'weight' is different; rank\(s\) {hvd.size() - 1} do not")


@scenario
def nothing_after_a_broadcast() -> None:
    with warnings_of_all_ranks() as told:
        for options in ({}, {"groups": 2}, {"op": hvd.Adasum}, {"op": hvd.Sum}):
            model = model_of(hvd.rank())
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            take_steps(model, wrapped(model, **options))
        expect(told())


@scenario
def with_every_kind_of_reduction() -> None:
    for options in (
        {"op": hvd.Adasum},
        {"groups": 1},
        {"compression": hvd.Compression.fp16},
        {"gradients_in_shared_memory": False},
        {"named_parameters": None},
    ):
        with warnings_of_all_ranks() as told:
            model = model_of(hvd.rank())
            named = options.pop("named_parameters", model.named_parameters())
            bare = torch.optim.SGD(model.parameters(), lr=0.1)
            take_steps(model, hvd.DistributedOptimizer(bare, named, **options))
            expect(told(), "'0.weight'" if named else r"'noname\.0\.0'")


@scenario
def several_passes_per_step() -> None:
    with warnings_of_all_ranks() as told:
        model = model_of(hvd.rank())
        take_steps(model, wrapped(model, backward_passes_per_step=3), passes=3)
        expect(told(), "'0.weight'")


@scenario
def frozen_parameters_may_differ() -> None:
    with warnings_of_all_ranks() as told:
        model = model_of(hvd.rank())
        for parameter in model[0].parameters():
            parameter.requires_grad_(False)
        hvd.broadcast_parameters(model[1].state_dict(), root_rank=0)
        take_steps(model, wrapped(model))
        expect(told())


@scenario
def parameters_of_every_dtype_and_layout() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        for differs in (False, True):
            with warnings_of_all_ranks() as told:
                weights = {str(size): nn.Parameter(torch.ones(size, dtype=dtype)) for size in (0, 1, 3, 5, 16)}
                weights["images"] = nn.Parameter(torch.ones(2, 3, 4, 5, dtype=dtype))
                with torch.no_grad():
                    weights["images"].copy_(torch.arange(120).view(2, 3, 4, 5))
                    if hvd.rank() == 0:  # the same values, in another order in memory
                        weights["images"].data = weights["images"].data.contiguous(memory_format=torch.channels_last)
                    weights["5"][4] += differs * hvd.rank()
                optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights.values(), lr=0.1), list(weights.items()))
                sum(weight.sum() for weight in weights.values()).backward()
                optimizer.step()
                hvd.barrier()
                expect(told(), *["'5' is different; "] * differs)


@scenario
def two_optimizers_that_step_in_opposite_order() -> None:
    with warnings_of_all_ranks() as told:
        models = [model_of(7), model_of(hvd.rank())]
        optimizers = [wrapped(model) for model in models]
        for _ in range(STEPS):
            for model in models:
                model(torch.ones(1, 3)).sum().backward()
            for optimizer in optimizers if hvd.rank() % 2 else reversed(optimizers):
                optimizer.step()
                optimizer.zero_grad()
        expect(told(), "'0.weight' is different, as are 3 more")


@scenario
def two_optimizers_of_one_rank_are_told_one_by_one() -> None:
    with warnings_of_all_ranks() as told:
        model = model_of(hvd.rank())
        optimizers = [
            hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1), list(layer.named_parameters(name)))
            for name, layer in (("front", model[0]), ("back", model[1]))
        ]
        for _ in range(STEPS):
            model(torch.ones(1, 3)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        expect(told(), r"'front\.weight'", r"'back\.weight'")


@scenario
def ranks_outside_the_process_set_take_no_part() -> None:
    if hvd.size() < 3:
        return
    members = hvd.add_process_set([1, 2])
    with warnings_of_all_ranks() as told:
        model = model_of(hvd.rank())
        take_steps(model, wrapped(model, process_set=members))
        expect(told(), r"rank\(s\) 2 do not have those of rank 1", on=1)
    with warnings_of_all_ranks() as told:
        model = model_of(min(hvd.rank(), 1))  # rank 0 has others than the members
        take_steps(model, wrapped(model, process_set=members))
        expect(told())
    hvd.remove_process_set(members)


@scenario
def ranks_with_other_parameters_altogether_are_told_by_the_gradients() -> None:
    if hvd.size() == 1:
        return
    model = nn.Linear(3, 2 + hvd.rank() % 2, bias=False)
    optimizer = wrapped(model)
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(hvd.Mismatch, match="gradient.weight"):
        optimizer.step()
    first = nn.Linear(3, 2)
    if hvd.rank() == 0:
        first.bias.requires_grad_(False)
    second = wrapped(first)
    (first.weight.sum() + hvd.rank()).backward()
    second._reducer._submit_ready()  # ranks compare other numbers of parameters, which is no error of the gradients
    hvd.barrier()
    first.bias.requires_grad_(False)
    second.step()


@scenario
def a_rank_that_has_joined_takes_no_part() -> None:
    """The first rank has no data in the first step; zeros that it adds are no parameters."""
    with warnings_of_all_ranks() as told:
        model = model_of(1)
        optimizer = wrapped(model)
        if hvd.rank() > 0 or hvd.size() == 1:
            take_steps(model, optimizer)
        hvd.join()
        expect(told())
    with warnings_of_all_ranks() as told:  # now it has the parameters of before
        take_steps(model, optimizer)
        expect(told(), rf"'0.weight' is .* rank\(s\) {others()} do not have those of rank 0")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    with warnings_of_all_ranks() as told:
        take_steps(model, optimizer)
        hvd.join()
        take_steps(model, optimizer)
        expect(told())


@scenario
def a_rank_whose_first_step_is_after_a_join_meets_the_others() -> None:
    """A difference is told by the first of those that are there."""
    if hvd.size() < 3:
        return
    with warnings_of_all_ranks() as told:
        model = model_of(hvd.rank())
        optimizer = wrapped(model)
        if hvd.rank() > 0:
            take_steps(model, optimizer, count=hvd.rank())
        hvd.join()
        expect(told(), "do not have those of rank 1", on=1)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        take_steps(model, optimizer)
        expect(told(), "do not have those of rank 1", on=1)


def drifting(model: nn.Module, optimizer: torch.optim.Optimizer, *, last_drifts: bool) -> None:
    """Takes a step; on the last rank gradients are changed behind the back of all checks."""
    model(torch.ones(1, 3)).sum().backward()
    optimizer.synchronize()
    if last_drifts and hvd.rank() == hvd.size() - 1:
        model[1].bias.grad.data.mul_(2)
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.zero_grad()


@scenario
def ranks_that_drift_apart() -> None:
    """Four parameters take turns from the second step on, so the last one has its turn in the fifth."""
    for options in ({}, {"op": hvd.Sum}, {"gradient_predivide_factor": 3.0}, {"compression": hvd.Compression.fp16}):
        with warnings_of_all_ranks() as told:
            model = model_of(1)
            optimizer = wrapped(model, **options)
            for step in range(1, 10):
                drifting(model, optimizer, last_drifts=step == 2)
                assert len(told()[0]) == (step >= 5 and hvd.size() > 1), step
            expect(
                told(),
                rf"^ranks no longer have the same parameters: in step 5, '1.bias' of rank {hvd.size() - 1} is "
                r"not that of rank 0. Usual causes: gradients changed between backward\(\) and step\(\).* skipped",
            )


@scenario
def ranks_with_unequal_learning_rates() -> None:
    with warnings_of_all_ranks() as told:
        model = model_of(1)
        optimizer = wrapped(model)
        optimizer.param_groups[0]["lr"] = 0.1 + 0.01 * hvd.rank()
        take_steps(model, optimizer)
        expect(told(), r"in step 2, '0.weight' of ")


@scenario
def ranks_that_take_steps_with_adasum() -> None:
    with warnings_of_all_ranks() as told:
        model = model_of(1)
        optimizer = wrapped(model, op=hvd.Adasum)
        take_steps(model, optimizer)
        with torch.no_grad():
            model[0].weight.add_(hvd.rank())
        take_steps(model, optimizer)
        expect(told(), r"'0.weight' of ")


@scenario
def equal_ranks_are_left_alone() -> None:
    """Whatever they train: parameters without rows, huge ones, unused, frozen, sparse and new ones, and joins."""
    with warnings_of_all_ranks() as told:
        torch.manual_seed(1)
        weights = {
            "scalar": nn.Parameter(torch.tensor(1.0)),
            "none": nn.Parameter(torch.ones(0, 3)),
            "rows": nn.Parameter(torch.randn(40_000, 3)),
            "images": nn.Parameter(torch.randn(3, 5, 7, 9).contiguous(memory_format=torch.channels_last)),
            "frozen": nn.Parameter(torch.randn(3), requires_grad=False),
            "unused": nn.Parameter(torch.randn(3)),
            "half": nn.Parameter(torch.randn(3).to(torch.bfloat16)),
        }
        bare = torch.optim.AdamW(weights.values(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(bare, list(weights.items()))
        for step in range(25):
            sum((hvd.rank() + 1) * each.float().sum() for name, each in weights.items() if name != "unused").backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 10:
                weights["frozen"].requires_grad_(True)
            if step == 15:
                optimizer.add_param_group({"params": [more := nn.Parameter(torch.ones(2))]})
                weights["more"] = more
        hvd.join()
        expect(told())


@scenario
def ranks_whose_turns_differ_find_each_other() -> None:
    with warnings_of_all_ranks() as told:
        model = model_of(1)
        optimizer = wrapped(model)
        take_steps(model, optimizer, count=2)
        if hvd.size() > 1:
            optimizer._reducer._check._slices._turn += 5 * hvd.rank()
        for _ in range(2):  # in the first nothing is compared, and in the second all are at the same turn
            take_steps(model, optimizer, count=1)
        turns = hvd.allgather_object(hvd.size() > 1 and optimizer._reducer._check._slices._turn)
        assert set(turns) == {turns[0]}
        expect(told())
        with torch.no_grad():
            model[0].weight.add_(hvd.rank())
        take_steps(model, optimizer, count=4)
        expect(told(), "'0.weight' of ")


@scenario
def joins_as_barriers_cost_ever_less() -> None:
    """Ranks compare by the number of joins alone, so they always do so together."""
    model = model_of(1)
    optimizer = wrapped(model)
    check = optimizer._reducer._check
    compared = []
    for _ in range(130):
        hvd.join()
        take_steps(model, optimizer, count=1)
        check._first_step_in = None
        if hvd.size() > 1:
            check.read(group_of(hvd.global_process_set))
            compared.append(not check._compares_slice)
            check.ready = None
    joins = hvd.allgather_object(compared)
    assert all(each == joins[0] for each in joins)
    assert hvd.size() == 1 or 60 <= sum(compared) <= 66


def test_torch_parameter_check(report: Report, name: str) -> None:
    assert report[name] == ""


def steps_with_settings(settings: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns rank 0's warnings, and its checksums, when ranks have these settings and different parameters."""
    rank = int(os.environ["HVDLITE_RANK"])
    os.environ["HVDLITE_CHECK_PARAMETERS"] = settings[rank]
    heard, sent = _Heard(), []
    logging.getLogger("hvdlite").addHandler(heard)
    hvd.init()
    group = current().everyone
    submit, submit_all = group.submit, group.submit_all

    def noted_submit(entry: Any, *arguments: Any, **options: Any) -> Any:
        sent.append(entry.name)
        return submit(entry, *arguments, **options)

    def noted_submit_all(entries: Any, *arguments: Any, **options: Any) -> None:
        sent.extend(entry.name for entry in entries)
        submit_all(entries, *arguments, **options)

    model = model_of(rank)
    with mock.patch.multiple(group, submit=noted_submit, submit_all=noted_submit_all):
        take_steps(model, wrapped(model))
    hvd.shutdown()
    assert any(name.startswith("gradient.") for name in sent)
    told = [text for text in heard.texts if "HVDLITE_CHECK_PARAMETERS" in text]
    return told, [name for name in sent if name.startswith(("checksum.", "slice."))]


def test_parameters_that_are_not_in_the_memory_of_the_host_have_no_turn() -> None:
    group: Any = SimpleNamespace(rank=0, size=2, ranks=(0, 1))
    remote = [(f"p{size}", nn.Parameter(torch.empty(size, device="meta"))) for size in ((), (3,), (4, 5))]
    assert Slices(remote, group, memory_of).read(lambda *_: 1) is None
    local = nn.Parameter(torch.ones(2))
    slices = Slices([*remote, ("local", local)], group, memory_of)
    assert [each.parameter for turn in slices._turns for each in turn] == [local]


@pytest.mark.parametrize("settings", [("0", "0", "0"), ("0", "1", "1"), ("1", "0", "1"), ("1", "0", "0")], ids="-".join)
def test_one_rank_that_turns_it_off_does_so_for_all(settings: Sequence[str]) -> None:
    first, *others = [outcome.result() for outcome in process_ranks(3, steps_with_settings, settings, server=TORCH)]
    assert others == [([], []), ([], [])]
    off = [str(rank) for rank, setting in enumerate(settings) if setting == "0"]
    told = [f"HVDLITE_CHECK_PARAMETERS is off on rank(s) {', '.join(off)} only, "] * ("1" in settings)
    assert [text.partition("so ")[0] for text in first[0]] == told
    assert first[1] == []


def drift_with_errors() -> tuple[int, str]:
    """Returns the step whose `synchronize` raised an error, and the error."""
    os.environ["HVDLITE_CHECK_PARAMETERS"] = "error" if os.environ["HVDLITE_RANK"] == "1" else "1"
    hvd.init()
    model = model_of(1)
    optimizer = wrapped(model)
    for step in range(1, 9):
        try:
            drifting(model, optimizer, last_drifts=step == 3)
        except hvd.Mismatch as error:
            hvd.shutdown()
            return step, str(error)
    raise AssertionError("no error")


@pytest.mark.parametrize("size", [2, 3])
def test_one_rank_that_wants_an_error_gets_it_on_all_ranks_in_the_same_step(size: int) -> None:
    first, *others = [outcome.result() for outcome in process_ranks(size, drift_with_errors, server=TORCH)]
    assert others == [first] * (size - 1)
    assert first[0] == 5
    assert f"in step 5, '1.bias' of rank {size - 1} is not that of rank 0" in first[1]


def test_all_ranks_that_leave_it_on_compare() -> None:
    first, second = [outcome.result() for outcome in process_ranks(2, steps_with_settings, ("1", "1"), server=TORCH)]
    assert (len(first[0]), len(first[1]), len(second[1])) == (1, STEPS, STEPS)
    assert second[0] == []

"""Groups of different lengths under one name: every rank hears which rank has how many, and the session goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.members.ranges import named
from tests.harness import process_ranks

FORMS = ("grouped_allreduce", "grouped_allreduce_", "grouped_reducescatter", "grouped_allgather")
KNOWN: list[list[int]] = [[], [2], [4], [4, 2], [2, 4]]
"""The lengths that all ranks had before under the same name."""

TWO_HOSTS = {rank: {"HVDLITE_HOSTID": f"host {rank % 2}"} for rank in range(5)}


def _program(members: list[int]) -> list[str]:
    hvd.init()
    rank = hvd.rank()
    process_set = hvd.add_process_set(members) if len(members) < hvd.size() else hvd.global_process_set
    texts = []
    for form in FORMS if rank in members else ():
        for odd in members:
            for known in KNOWN:
                name = f"{form} {odd} {known}"
                for length in known:
                    _succeeds(form, length, name, process_set)
                texts.append(_refused(form, 2 if rank == odd else 4, name, process_set))
                _succeeds(form, 4, name, process_set)
            texts.append(_refused(form, 2 if rank == odd else 4, None, process_set))
            _succeeds(form, 4, None, process_set)
    if rank in members:
        many = [np.ones(1)] * (1000 if rank == members[0] else 999)
        refused = hvd.grouped_allreduce_async(many, name="many", process_set=process_set)
        beside = hvd.grouped_allreduce_async(many[:3], name="many[1]", process_set=process_set)
        with pytest.raises(hvd.Mismatch, match="group 'many': .* 1000; .* 999"):
            hvd.synchronize(refused)
        hvd.synchronize(beside)
    hvd.barrier()
    hvd.shutdown()
    return texts


def _call(form: str, length: int, name: str | None, process_set: hvd.ProcessSet) -> Any:
    return getattr(hvd, form)([np.ones(6) for _ in range(length)], name=name, process_set=process_set)


def _succeeds(form: str, length: int, name: str | None, process_set: hvd.ProcessSet) -> None:
    results = _call(form, length, name, process_set)
    assert len(results) == length
    for result in results:
        np.testing.assert_array_equal(result, 1)


def _refused(form: str, length: int, name: str | None, process_set: hvd.ProcessSet) -> str:
    with pytest.raises(hvd.Mismatch) as caught:
        _call(form, length, name, process_set)
    return str(caught.value)


@pytest.mark.parametrize(
    ("members", "size", "hosts", "cache"),
    [
        ([0, 1], 2, {}, 4096),
        ([0, 1, 2], 3, {}, 4096),
        ([0, 1, 2], 3, {}, 5),
        ([0, 2], 3, {}, 4096),
        ([0, 1, 2, 3, 4], 5, TWO_HOSTS, 4096),
        ([0, 1, 2, 3, 4], 5, TWO_HOSTS, 0),
    ],
    ids=["2 ranks", "3 ranks", "3 ranks, cache of 5", "process set", "two hosts", "two hosts, no cache"],
)
def test_every_rank_hears_both_lengths(
    members: list[int], size: int, hosts: dict[int, dict[str, str]], cache: int
) -> None:
    environ = {"HVDLITE_CACHE_CAPACITY": str(cache), "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "30"}
    outcomes = process_ranks(size, _program, members, environ=environ, environ_by_rank=hosts)
    told = [outcome.result() for outcome in outcomes]
    for rank in range(size):
        assert told[rank] == (told[members[0]] if rank in members else [])
    rows = iter(told[members[0]])
    for form in FORMS:
        kind = form.removeprefix("grouped_").rstrip("_")
        for odd in members:
            others = [rank for rank in members if rank != odd]
            sides = [f"{named(others)} {'have' if len(others) > 1 else 'has'} 4", f"rank {odd} has 2"]
            if odd == members[0]:  # who is named first
                sides.reverse()
            groups = [f"'{form} {odd} {known}'" for known in KNOWN] + [f"'{kind}.noname."]
            for group in groups:
                text = next(rows)
                assert text.startswith(f"ranks disagree about the number of tensors in group {group}")
                assert text.endswith(f": {'; '.join(sides)}. Submit the same on every rank.")
    assert len(list(rows)) == 0

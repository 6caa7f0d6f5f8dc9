"""A group without tensors: all ranks give one, or all of them hear who does not."""

from __future__ import annotations

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import process_ranks

_FORMS = ("grouped_allreduce", "grouped_allreduce_", "grouped_reducescatter", "grouped_allgather")
_KNOWN: tuple[list[int], ...] = ([], [0], [2], [2, 0])
"""The lengths that all ranks had before under the same name."""


def _length_of_result(form: str, length: int, name: str | None) -> int:
    return len(getattr(hvd, form)([np.ones(6)] * length, name=name))


def _refused(form: str, length: int, name: str | None) -> str:
    with pytest.raises(hvd.Mismatch) as caught:
        _length_of_result(form, length, name)
    return str(caught.value)


def _table() -> list[str]:
    hvd.init()
    texts = []
    for form in _FORMS:
        for odd in range(hvd.size()):
            for known in (*_KNOWN, None):
                name = None if known is None else f"{form} {odd} {known}"
                for length in known or ():
                    assert _length_of_result(form, length, name) == length
                texts.append(_refused(form, 0 if hvd.rank() == odd else 2, name))
                for length in (0, 2, 0):
                    assert _length_of_result(form, length, name) == length
    hvd.shutdown()
    return texts


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("cache", [4096, 0])
def test_every_rank_hears_of_an_empty_group(size: int, cache: int) -> None:
    environ = {"HVDLITE_CACHE_CAPACITY": str(cache)}
    told = [outcome.result() for outcome in process_ranks(size, _table, environ=environ)]
    assert told == [told[0]] * size
    texts = iter(told[0])
    for form in _FORMS:
        for odd in range(size):
            for known in (*_KNOWN, None):
                text = next(texts)
                name = (
                    f"{form.removeprefix('grouped_').rstrip('_')}.noname." if known is None else f"{form} {odd} {known}"
                )
                assert text.startswith(f"ranks disagree about the number of tensors in group '{name}")
                assert f"rank {odd} has 0" in text


def _handles() -> None:
    hvd.init()
    handle = hvd.grouped_allreduce_async([], name="x")
    assert repr(handle).startswith("<GroupHandle of 0 tensors")
    assert hvd.synchronize(handle) == []
    assert hvd.synchronize(hvd.grouped_allgather_async([])) == []
    assert hvd.synchronize(handle) is None
    if hvd.rank() == 0:  # the other rank has joined
        assert hvd.grouped_allreduce([], name="y") == []
    hvd.join()
    assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == hvd.size()
    hvd.shutdown()


@pytest.mark.parametrize("size", [1, 2])
def test_an_empty_group_has_a_handle_and_no_results(size: int) -> None:
    for outcome in process_ranks(size, _handles):
        outcome.result()

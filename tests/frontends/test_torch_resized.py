"""Storage that changes under a collective in flight: `set_` does no harm, a resize is an error that names the tensor.

The other rank submits behind a barrier that this one calls when it has changed its tensor, so the batch begins later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch

import hvdlite.torch as hvd
from hvdlite.engine.calls import Calls
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH

ELEMENTS = 1 << 18

FORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "allreduce_async": lambda tensor: hvd.allreduce_async(tensor, op=hvd.Sum, name="t"),
    "allreduce_async_": lambda tensor: hvd.allreduce_async_(tensor, op=hvd.Sum, name="t"),
    "grouped_allreduce_async_": lambda tensor: hvd.grouped_allreduce_async_([torch.ones(3), tensor], name="t"),
    "allgather_async": lambda tensor: hvd.allgather_async(tensor, name="t"),
    "broadcast_async_": lambda tensor: hvd.broadcast_async_(tensor, 0, name="t"),
    "reducescatter_async": lambda tensor: hvd.reducescatter_async(tensor, name="t"),
    "alltoall_async": lambda tensor: hvd.alltoall_async(tensor, name="t"),
}
RESIZES: dict[str, Callable[[torch.Tensor], Any]] = {
    "resize_": lambda tensor: tensor.resize_(4 * ELEMENTS),
    "resize_ of a view": lambda tensor: tensor.view(2, -1).resize_(4 * ELEMENTS),
    "storage to 0": lambda tensor: tensor.untyped_storage().resize_(0),
    "storage to less": lambda tensor: tensor.untyped_storage().resize_(16),
}


def _submit(form: str, tensor: torch.Tensor, change: Callable[[torch.Tensor], Any]) -> Any:
    """The handle of a collective whose tensor rank 0 changes before rank 1 submits its own."""
    if hvd.rank() == 1:
        hvd.barrier()
        return FORMS[form](tensor)
    handle = FORMS[form](tensor)
    change(tensor)
    hvd.barrier()
    return handle


def _resized() -> dict[str, str]:
    """Returns the values that each rank reads. Every case ends its session, so each has its own."""
    texts = {}
    for form in FORMS:
        for change, resize in RESIZES.items():
            if change != "storage to 0" and form not in ("allreduce_async_", "allgather_async"):
                continue  # what matters is that each form looks, and that each change is seen
            for offset in (0, 8):  # a tensor that begins where its storage does, and one that does not
                hvd.init()
                tensor = torch.ones(ELEMENTS + offset)[offset:]
                try:
                    hvd.synchronize(_submit(form, tensor, resize))
                    texts[f"{form}, {change}, {offset}"] = "no error"
                except hvd.HorovodInternalError as error:
                    texts[f"{form}, {change}, {offset}"] = str(error)
                hvd.shutdown()
    return texts


def test_a_resized_storage_is_an_error_that_names_the_tensor_on_all_ranks() -> None:
    own, others = (outcome.result() for outcome in process_ranks(2, _resized, server=TORCH))
    assert len(own) > 20
    for case, text in own.items():
        assert "the storage of tensor 't" in text, case
        assert "was resized while the tensor was in flight, or " in text, case
        assert "synchronize its handle before resize_()" in text, case
    for case, text in others.items():
        assert "rank 0" in text, case
        assert "the storage of tensor 't" in text, case


def _set() -> str:
    """`set_` and a dropped tensor, many times, so that freed memory would be written by others."""
    hvd.init()
    kept = []
    for form in FORMS:
        for offset in (0, 8):
            for change in (
                lambda tensor: tensor.set_(torch.full((ELEMENTS,), -7.0)),
                lambda tensor: tensor.set_(),
                lambda tensor: setattr(tensor, "data", torch.full((3,), -7.0)),
            ):
                tensor = torch.ones(ELEMENTS + offset)[offset:]
                same_memory = tensor.view(-1)
                handle = _submit(form, tensor, change)
                if not form.endswith("_"):
                    del same_memory  # nobody but the handle has the memory now
                kept.append(torch.full((ELEMENTS,), -7.0))  # which it would be given
                result = hvd.synchronize(handle)
                if form == "allreduce_async_":
                    assert same_memory.unique().tolist() == [2.0]  # what was submitted
                elif form == "broadcast_async_":
                    assert same_memory.unique().tolist() == [1.0]
                elif form == "allgather_async":
                    assert result.unique().tolist() == [1.0]
                elif form == "allreduce_async":
                    assert result.unique().tolist() == [2.0]
                elif form == "reducescatter_async":
                    assert result.unique().tolist() == [1.0]
                elif form == "alltoall_async":
                    assert result[0].unique().tolist() == [1.0]
                kept.clear()
    hvd.shutdown()
    return "right"


def test_after_set_the_collective_has_the_storage_that_was_submitted() -> None:
    assert [outcome.result() for outcome in process_ranks(2, _set, server=TORCH)] == ["right"] * 2


def _blocking() -> tuple[int, str]:
    """A tensor of blocking calls gets other storage, and then its storage is cut. Counts the native calls."""
    hvd.init()
    finish, done = Calls._finish, []

    def counted(calls: Calls, *arguments: Any) -> None:
        done.append(None)
        finish(calls, *arguments)

    tensor = torch.ones(1000)
    with patch.object(Calls, "_finish", counted):
        for step in range(20):
            if step % 5 == 4:
                tensor.set_(torch.empty(1000))
            tensor.fill_(step)
            hvd.allreduce_(tensor, op=hvd.Sum, name="t")
            assert tensor.unique().tolist() == [2.0 * step]
        assert len(done) > 10
        calls = len(done)
        if hvd.rank() == 0:
            tensor.untyped_storage().resize_(16)
        try:
            hvd.allreduce_(tensor, op=hvd.Sum, name="t")
        except hvd.HorovodInternalError as error:
            text = str(error)
        assert len(done) == calls
    hvd.shutdown()
    return calls, text


def test_blocking_calls_notice_other_storage() -> None:
    (_, own), (_, other) = (outcome.result() for outcome in process_ranks(2, _blocking, server=TORCH))
    assert "the storage of tensor 't" in own
    assert "rank 0" in other


def _cut_between_calls() -> dict[str, str]:
    """Returns the values that each rank reads of a known tensor whose storage rank 0 has cut since."""
    texts = {}
    for form in FORMS:
        for offset in (0, 8):
            hvd.init()
            tensor = torch.ones(ELEMENTS + offset)[offset:]
            for _ in range(2):
                hvd.synchronize(FORMS[form](tensor))
            if hvd.rank() == 0:
                tensor.untyped_storage().resize_(64)
            try:
                hvd.synchronize(FORMS[form](tensor))
                texts[f"{form}, {offset}"] = "no error"
            except hvd.HorovodInternalError as error:
                texts[f"{form}, {offset}"] = str(error)
            hvd.shutdown()
    return texts


def test_a_storage_that_was_cut_between_calls_is_not_read_beyond_its_end() -> None:
    for texts in (outcome.result() for outcome in process_ranks(2, _cut_between_calls, server=TORCH)):
        assert len(texts) == 2 * len(FORMS)
        for case, text in texts.items():
            assert "rank 0" in text or "the storage of tensor" in text, case
            assert "or to fewer bytes than the tensor has" in text, case


def test_what_is_done_may_be_resized() -> None:
    hvd.init()
    try:
        tensor = hvd.allreduce_(torch.ones(4), name="t")
        assert tensor.resize_(8).shape == (8,)
        assert hvd.allreduce_(tensor.fill_(1.0), name="t").tolist() == [1.0] * 8
        tensor.untyped_storage().resize_(0)
        with pytest.raises(ValueError, match="storage was resized"):
            hvd.allreduce_(tensor, name="t")
    finally:
        hvd.shutdown()

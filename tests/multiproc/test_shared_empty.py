"""`shared_empty` within a session and outside of one, for numpy and for PyTorch."""

from __future__ import annotations

import copy
import itertools
import pickle
import signal
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.tensors.dtypes import DType
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH
from tests.harness.interrupts import At

torch = pytest.importorskip("torch", reason="needs PyTorch")


def _make_all() -> int:
    import hvdlite.torch as hvd_torch

    addresses = []
    for dtype in DType:
        kind: Any = getattr(torch, str(dtype))
        tensor = hvd_torch.shared_empty(2, 300, dtype=kind)
        assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == ((2, 300), kind, True)
        tensor.fill_(1)
        addresses.append(tensor.data_ptr())
        if dtype is not DType.BFLOAT16:
            array = hvd.shared_empty((2, 300), str(dtype))
            assert (array.shape, array.dtype.name, array.flags.c_contiguous) == ((2, 300), str(dtype), True)
            array.fill(1)
            addresses.append(array.ctypes.data)
            assert (copy.deepcopy(array) == array).all()
            assert (pickle.loads(pickle.dumps(array)) == array).all()
    if hvd.is_initialized() and hvd.size() > 1:
        assert not any(address % 64 for address in addresses)
    assert hvd.shared_empty(7).dtype == np.float32
    kept = [hvd.shared_empty(np.int64(7)), hvd.shared_empty((np.int32(2), 7)), hvd.shared_empty(7)]
    assert [array.shape for array in kept] == [(7,), (2, 7), (7,)]
    assert hvd.shared_empty(()).shape == ()
    assert hvd.shared_empty((0, 3)).shape == (0, 3)
    assert hvd_torch.shared_empty((3, 2)).dtype == torch.float32
    assert hvd_torch.shared_empty(torch.Size([0, 3])).shape == (0, 3)
    assert hvd_torch.shared_empty().shape == ()
    for wrong in ("complex64", ">f4", "U3"):
        with pytest.raises(ValueError, match="is not supported"):
            hvd.shared_empty(3, wrong)
    with pytest.raises(ValueError, match=r"torch\.complex64 is not supported"):
        hvd_torch.shared_empty(3, dtype=torch.complex64)
    for shape in ((-1, -2), (3, -1)):
        with pytest.raises(ValueError, match="negative dimension"):
            hvd.shared_empty(shape)
    return len(addresses)


def _in_a_session() -> int:
    hvd.init()
    made = _make_all()
    hvd.shutdown()
    return made


def test_every_dtype_and_shape_before_init() -> None:
    assert _make_all() == 19


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.usefixtures("torch_fork_server")
def test_every_dtype_and_shape_in_a_session(size: int) -> None:
    assert [outcome.result() for outcome in process_ranks(size, _in_a_session, server=TORCH)] == [19] * size


def _allocate_in_a_handler() -> int:
    """A handler allocates before any bytecode of an allocation."""
    hvd.init()
    made: list[Any] = []
    signal.signal(signal.SIGUSR1, lambda *_: made.append(hvd.shared_empty(16)))
    for number in itertools.count(step=5):
        with At(number) as at:
            made.append(hvd.shared_empty(16))
        if not at.where:
            break
    assert len({array.ctypes.data for array in made}) == len(made)
    hvd.barrier()
    hvd.shutdown()
    return len(made)


def test_a_signal_handler_allocates_during_an_allocation() -> None:
    for outcome in process_ranks(2, _allocate_in_a_handler):
        assert outcome.result() > 10

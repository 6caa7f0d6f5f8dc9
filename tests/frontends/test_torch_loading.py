"""The time that a program waits for PyTorch's data loaders is known."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import hvdlite.torch  # noqa: F401 - measures
from hvdlite.observe.loading import loading

_ITEM_S = 0.02


class Slow(Dataset[torch.Tensor]):
    """Three items that take a while."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(_ITEM_S)
        return torch.tensor(float(index))


class SlowStream(IterableDataset[torch.Tensor]):
    """The same as a stream, through another loader."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from DataLoader(Slow(), batch_size=None)


@pytest.fixture(autouse=True)
def _trains_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "thread", threading.get_ident())


@pytest.mark.parametrize(("data", "workers"), [(Slow(), 0), (Slow(), 1), (SlowStream(), 0)])
def test_what_the_program_waits_for_counts(data: Dataset[torch.Tensor], workers: int) -> None:
    before, begun = loading.seconds(time.monotonic()), time.monotonic()
    found = [float(each) for each in DataLoader(data, batch_size=None, num_workers=workers)]
    lasted_s = time.monotonic() - begun
    assert found == [0.0, 1.0, 2.0]
    measured_s = loading.seconds(time.monotonic()) - before
    assert (1 if workers else 3) * _ITEM_S <= measured_s <= lasted_s


def test_what_it_does_between_the_items_does_not() -> None:
    before, between_s = loading.seconds(time.monotonic()), 0.0
    begun = time.monotonic()
    for _ in DataLoader(Slow(), batch_size=None):
        works = time.monotonic()
        time.sleep(10 * _ITEM_S)
        between_s += time.monotonic() - works
    assert loading.seconds(time.monotonic()) - before <= time.monotonic() - begun - between_s

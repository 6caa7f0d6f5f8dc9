"""Measures how long the training loop waits for PyTorch's data loader (`hvdlite.observe.loading`)."""

from __future__ import annotations

from typing import Final

from torch.utils.data import DataLoader, dataloader

from hvdlite.ops import loading

# The first starts the loader's processes. The second is PyTorch's private base of all iterators of loaders.
_HOOKS: Final = ((DataLoader, "__iter__"), (getattr(dataloader, "_BaseDataLoaderIter", None), "__next__"))


def measure() -> None:
    """Counts the time in every data loader of this process from now on. Call it once."""
    for owner, name in _HOOKS:
        if owner is not None:
            setattr(owner, name, loading.timed(getattr(owner, name)))

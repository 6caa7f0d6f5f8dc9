"""The systems that hvdlite can be compared with, and which of them a study can use."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final

import click

import hvdlite as hvd
from hvdlite.bench.mpi.job import MpiJob, open_mpi
from hvdlite.bench.mpi.libraries import DTYPES as MPI_DTYPES
from hvdlite.bench.mpi.libraries import LIBRARIES, Unavailable
from hvdlite.bench.systems import Hvdlite, Registered, System


def _gloo() -> AbstractContextManager[System]:
    from hvdlite.bench.gloo import open_gloo  # torch is imported only where it is measured

    return open_gloo(hvd.rank(), hvd.size())


OTHERS: dict[str, Callable[[], AbstractContextManager[System]]] = {"gloo": _gloo}
"""The systems that run in this process, and how to open them."""

_MEANINGS: Final = {label: (label,) for label in (*OTHERS, *LIBRARIES)} | {"mpi": tuple(LIBRARIES)}


def parse_peers(text: str) -> tuple[str, ...]:
    """The labels that ``text`` lists. Raises ValueError for anything else."""
    labels: list[str] = []
    for word in text.split(","):
        if (word := word.strip()) not in _MEANINGS:
            raise ValueError(f"cannot compare with {word!r}; choose from {', '.join(_MEANINGS)}.")
        labels.extend(_MEANINGS[word])
    return tuple(dict.fromkeys(labels))


def in_process(labels: Sequence[str]) -> list[str]:
    """The labels of systems that run in the processes of the benchmark."""
    return [label for label in labels if label in OTHERS]


def of_mpi(labels: Sequence[str]) -> list[str]:
    """The labels of systems with processes of their own."""
    return [label for label in labels if label in LIBRARIES]


def require_torch(purpose: str) -> None:
    """Raises UsageError where PyTorch cannot be imported."""
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise click.UsageError(
            f"{purpose} needs PyTorch ({error}); install it with pip install 'hvdlite[torch]'."
        ) from None


def require_keras(purpose: str) -> None:
    """Makes TensorFlow the back end of Keras. Raises UsageError where either cannot be imported."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only, among which rank 0 prints its table
    try:
        importlib.import_module("tensorflow")
        importlib.import_module("keras")
    except ImportError as error:
        raise click.UsageError(
            f"{purpose} needs TensorFlow and Keras 3 ({error}); "
            "install them with pip install 'hvdlite[tensorflow,keras]'."
        ) from None


def require_dtype(labels: Sequence[str], dtype: str) -> None:
    """Raises UsageError unless all peers reduce ``dtype``."""
    if "gloo" in labels:
        from hvdlite.bench.gloo import DTYPES  # it imports torch

        _require_in(DTYPES, "Gloo", dtype)
    if of_mpi(labels):
        _require_in(MPI_DTYPES, "MPI", dtype)


def _require_in(dtypes: frozenset[str], system: str, dtype: str) -> None:
    if dtype not in dtypes:
        raise click.UsageError(f"{system} does not take {dtype}; it takes {', '.join(sorted(dtypes))}.")


@contextmanager
def open_systems(others: Sequence[str], uses_torch: bool, registers: bool) -> Iterator[list[System]]:
    """Opens hvdlite, twice if registered memory is measured too, and the ``others``; closes all on leaving."""
    with ExitStack() as stack:
        hvd.init()
        stack.callback(hvd.shutdown)
        own = [Hvdlite(uses_torch), *([Registered(uses_torch)] if registers else [])]
        yield [*own, *(stack.enter_context(OTHERS[label]()) for label in others)]


@contextmanager
def open_jobs(labels: Sequence[str]) -> Iterator[tuple[list[MpiJob], list[str]]]:
    """Opens the MPI jobs among ``labels``, and notes their versions, or why one is left out; ends them on leaving."""
    jobs: list[MpiJob] = []
    notes: list[str] = []
    with ExitStack() as stack:
        for label in of_mpi(labels):
            try:
                jobs.append(stack.enter_context(open_mpi(LIBRARIES[label])))
            except Unavailable as error:
                notes.append(f"{label} is left out: {error}")
            else:
                notes.append(f"{label} is {jobs[-1].version}")
        yield jobs, notes

"""The systems that hvdlite can be compared with, and which of them a study can use."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import NamedTuple, Protocol

import click

import hvdlite as hvd
from hvdlite.bench.measuring.systems import Hvdlite, Registered, System, TensorType
from hvdlite.bench.measuring.timing import Timed
from hvdlite.errors import HvdError


class Unavailable(HvdError):
    """A peer cannot be measured here."""


class Job(Protocol):
    """Processes of a peer, one beside each rank of the benchmark."""

    label: str
    version: str

    def candidate(self, op: str, dtype: str, elements: int) -> Timed:
        """Returns the collective ``op`` on tensors of ``elements``. All ranks make the same one."""


class Peer(NamedTuple):
    """A peer that runs in processes of its own, and takes part in sweeps only.

    Its ``family`` in lower case stands for all peers of that family. All ranks call ``open``; all of them raise
    Unavailable, or none does.
    """

    family: str
    dtypes: frozenset[str]
    open: Callable[[], AbstractContextManager[Job]]


Peers = Mapping[str, Peer]
"""Further peers, by label. The wheel has none; `benchmarks.mpi` adds MPI."""


def _distributed(label: str) -> AbstractContextManager[System]:
    from hvdlite.bench.distributed import open_distributed  # torch is imported only where it is measured

    return open_distributed(label, hvd.rank(), hvd.size())


OTHERS: dict[str, Callable[[], AbstractContextManager[System]]] = {
    label: partial(_distributed, label) for label in ("gloo", "nccl")
}
"""The systems that run in this process, and how to open them."""


def parse_peers(lists: Sequence[str], further: Peers) -> list[str]:
    """The labels that the ``lists`` name. Raises UsageError for a word that names neither a peer nor a family."""
    meanings = {label: [label] for label in (*OTHERS, *further)}
    for label, peer in further.items():
        meanings.setdefault(peer.family.lower(), []).append(label)
    labels: list[str] = []
    for word in (word.strip() for each in lists for word in each.split(",")):
        if word not in meanings:
            elsewhere = "" if further else "; 'python -m benchmarks' in hvdlite's sources also compares with MPI"
            raise click.UsageError(f"cannot compare with {word!r}; choose from {', '.join(meanings)}{elsewhere}.")
        labels.extend(meanings[word])
    return list(dict.fromkeys(labels))


def in_process(labels: Sequence[str]) -> list[str]:
    """The labels of systems that run in the processes of the benchmark."""
    return [label for label in labels if label in OTHERS]


def require_torch(purpose: str) -> None:
    """Raises UsageError where PyTorch cannot be imported."""
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise click.UsageError(
            f"{purpose} needs PyTorch ({error}); install it with pip install 'hvdlite[torch]'."
        ) from None


def peers_of_training(device: str) -> list[str]:
    """The label of what DDP runs over on ``device``; none if this PyTorch has it not."""
    require_torch("--train")
    if device == "cpu":
        return ["gloo"]
    return ["nccl"] if importlib.import_module("torch.distributed").is_nccl_available() else []


def require_gpu(labels: Sequence[str], is_asked: bool) -> None:
    """Raises UsageError where ``labels`` are not those for GPUs, if one ``is_asked`` for, or if PyTorch finds none."""
    if is_asked and (strange := [label for label in labels if label != "nccl"]):
        raise click.UsageError(f"--device cuda compares with nccl only, not with {', '.join(strange)}.")
    if not is_asked and "nccl" in labels:
        raise click.UsageError("nccl is for GPUs; add --device cuda.")
    if is_asked and not importlib.import_module("torch").cuda.is_available():
        raise click.UsageError("--device cuda needs a GPU, and PyTorch finds none.")


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


def require_dtype(labels: Sequence[str], dtype: str, further: Peers) -> None:
    """Raises UsageError unless all peers reduce ``dtype``."""
    if "gloo" in labels:
        from hvdlite.bench.distributed import DTYPES  # it imports torch

        _require_in(DTYPES, "Gloo", dtype)
    for label in labels:
        if label in further:
            _require_in(further[label].dtypes, further[label].family, dtype)


def _require_in(dtypes: frozenset[str], system: str, dtype: str) -> None:
    if dtype not in dtypes:
        raise click.UsageError(f"{system} does not take {dtype}; it takes {', '.join(sorted(dtypes))}.")


@contextmanager
def open_systems(others: Sequence[str], kind: TensorType, registers: bool) -> Iterator[list[System]]:
    """Opens hvdlite, twice if it ``registers`` memory too, and the ``others``; closes all on leaving."""
    with ExitStack() as stack:
        hvd.init()
        stack.callback(hvd.shutdown)
        own: list[System] = [Hvdlite(kind.uses_torch), *([Registered(kind.uses_torch)] if registers else [])]
        yield [*own, *(stack.enter_context(OTHERS[label]()) for label in others)]


@contextmanager
def open_jobs(peers: Peers) -> Iterator[tuple[list[Job], list[str]]]:
    """Opens the jobs of ``peers``, and notes their versions, or why one is left out; ends them on leaving."""
    jobs: list[Job] = []
    notes: list[str] = []
    with ExitStack() as stack:
        for label, peer in peers.items():
            try:
                jobs.append(stack.enter_context(peer.open()))
            except Unavailable as error:
                notes.append(f"{label} is left out: {error}")
            else:
                notes.append(f"{label} is {jobs[-1].version}")
        yield jobs, notes

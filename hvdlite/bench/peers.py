"""What hvdlite is compared with in the same processes, torch.distributed over Gloo or NCCL, and what that needs."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import click

import hvdlite as hvd
from hvdlite.bench.measuring.systems import Hvdlite, Registered, System, TensorType

OTHERS = ("gloo", "nccl")


def parse_peers(lists: Sequence[str], further: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """The labels in ``lists``: those of `OTHERS`, and for a word in ``further`` its labels.

    Raises UsageError for other words.
    """
    meanings = {label: [label] for label in OTHERS} | dict(further or {})
    labels: list[str] = []
    for word in (word.strip() for each in lists for word in each.split(",")):
        if word not in meanings:
            elsewhere = "" if further else "; 'python -m benchmarks' in hvdlite's sources also compares with MPI"
            raise click.UsageError(f"cannot compare with {word!r}; choose from {', '.join(meanings)}{elsewhere}.")
        labels.extend(meanings[word])
    return list(dict.fromkeys(labels))


def tensor_type(dtype: str, labels: Sequence[str], device: str = "cpu", purpose: str = "") -> TensorType:
    """The type of tensors for hvdlite and the peers ``labels``: PyTorch's if peers, dtype or device need it.

    Raises UsageError if PyTorch is needed, for ``purpose``, and missing, or if Gloo does not reduce the dtype.
    """
    kind = TensorType(dtype, bool(labels) or dtype == "bfloat16" or device != "cpu", device)  # numpy has no bfloat16
    if kind.uses_torch:
        require_torch(purpose or (f"--compare {','.join(labels)}" if labels else f"--dtype {dtype}"))
    if "gloo" in labels:
        from hvdlite.bench.distributed import DTYPES  # it imports torch

        require_dtype(dtype, DTYPES, "Gloo")
    return kind


def require_torch(purpose: str) -> None:
    """Raises UsageError where PyTorch cannot be imported."""
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise click.UsageError(
            f"{purpose} needs PyTorch ({error}); install it with pip install 'hvdlite[torch]'."
        ) from None


def peers_of_training(device: str) -> list[str]:
    """The label of DDP's back end on ``device``; none if this PyTorch lacks it."""
    require_torch("--train")
    if device == "cpu":
        return ["gloo"]
    return ["nccl"] if importlib.import_module("torch.distributed").is_nccl_available() else []


def require_gpu(labels: Sequence[str], is_asked: bool) -> None:
    """Raises UsageError if ``labels`` do not suit the device, or if a GPU ``is_asked`` for and PyTorch finds none."""
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


def require_dtype(dtype: str, dtypes: frozenset[str], system: str) -> None:
    """Raises UsageError unless ``system`` reduces ``dtype``."""
    if dtype not in dtypes:
        raise click.UsageError(f"{system} does not take {dtype}; it takes {', '.join(sorted(dtypes))}.")


@contextmanager
def open_systems(
    others: Sequence[str], kind: TensorType, registers: bool, fuses: bool = False
) -> Iterator[list[System]]:
    """Opens hvdlite, also as it ``registers`` memory and ``fuses`` in each way, and the ``others``; closes all."""
    with ExitStack() as stack:
        hvd.init()
        stack.callback(hvd.shutdown)
        own: list[System] = [Hvdlite(kind.uses_torch), *([Registered(kind.uses_torch)] if registers else [])]
        if fuses:
            from hvdlite.bench.gpu.fusion import WAYS, Fused  # it imports torch

            own += map(Fused, WAYS)
        if others:
            from hvdlite.bench.distributed import open_distributed  # it imports torch

            yield [*own, *(stack.enter_context(open_distributed(each, hvd.rank(), hvd.size())) for each in others)]
        else:
            yield own

"""What ``--train torch`` trains: models of the usual sizes, on batches of noise.

Models have no dropout, so that all ranks compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from hvdlite.bench.training.figures import BATCH, TOKENS

_CLASSES = 1000
_GPU_TOKENS = 512


class Workload(NamedTuple):
    """A model, and the batch of a rank: the model's input, and the classes that it should find."""

    make_model: Callable[[], nn.Module]
    make_batch: Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]
    describes: str

    def placed(self, rank: int, device: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        """The model, the same in every process, and the batch of ``rank``, on ``device``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            with torch.device("cpu"):
                model = self.make_model()
        inputs, classes = self.make_batch(torch.Generator().manual_seed(rank))
        return model.to(device), inputs.to(device), classes.to(device)


class Transformer(nn.Module):
    """Logits of the next token, shape ``(batch, tokens, vocabulary)``, from tokens of shape ``(batch, tokens)``.

    It needs no position embeddings, since causal attention distinguishes positions.
    """

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device)
        hidden = self.layers(self.embedding(tokens), mask=mask, is_causal=True)
        logits: torch.Tensor = self.output(hidden)
        return logits


class _Bottleneck(nn.Module):
    def __init__(self, entering: int, width: int, stride: int) -> None:
        super().__init__()
        leaving = 4 * width
        self.branch = nn.Sequential(
            *_normalized(entering, width, 1),
            nn.ReLU(inplace=True),
            *_normalized(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_normalized(width, leaving, 1),
        )
        has_shape = entering == leaving and stride == 1
        self.shortcut = nn.Identity() if has_shape else nn.Sequential(*_normalized(entering, leaving, 1, stride))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.branch(images) + self.shortcut(images))


def _normalized(entering: int, leaving: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(entering, leaving, size, stride, size // 2, bias=False), nn.BatchNorm2d(leaving)


def resnet50() -> nn.Module:
    """ResNet-50, of 25,557,032 parameters in 161 tensors."""
    blocks: list[nn.Module] = []
    entering = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(count):
            blocks.append(_Bottleneck(entering, width, stride if index == 0 else 1))
            entering = 4 * width
    return nn.Sequential(
        *_normalized(3, 64, 7, 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(entering, _CLASSES),
    )


def _images(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(32, 3, 224, 224, generator=generator)
    return images, torch.randint(_CLASSES, (32,), generator=generator)


def _text(vocabulary: int, sequences: int, tokens: int) -> Callable[[torch.Generator], Any]:
    def make(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        text = torch.randint(vocabulary, (sequences, tokens + 1), generator=generator)
        return text[:, :-1], text[:, 1:].flatten()

    return make


def _layers(count: int, width: int) -> nn.Module:
    """``count`` tensors: the weights and biases of small layers."""
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count // 2)))


def _rows(width: int) -> Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]:
    return lambda generator: (
        torch.randn(64, width, generator=generator),
        torch.randint(width, (64,), generator=generator),
    )


ON_CPUS = Workload(
    lambda: Transformer(8000, 512, 6, 8), _text(8000, BATCH, TOKENS), f"batch {BATCH}×{TOKENS} tokens on each rank"
)
"""27,114,304 parameters in 75 tensors: 12 in each of six layers, the embedding, and the output's weight and bias."""

ON_GPUS = {
    "resnet50": Workload(resnet50, _images, "ResNet-50, batch 32"),
    "transformer": Workload(
        lambda: Transformer(26_000, 768, 12, 12),
        _text(26_000, 8, _GPU_TOKENS),
        f"125 M parameters, 8×{_GPU_TOKENS} tokens",
    ),
    "layers": Workload(lambda: _layers(1000, 256), _rows(256), "1,000 tensors"),
    "tiny": Workload(lambda: _layers(10, 8), _rows(8), "10 tensors"),
}
"""By the name in the command line. *tiny* only shows that the benchmark works."""

"""The model that ``--train torch`` trains: a small transformer that predicts the next token.

27,114,304 parameters in 75 tensors: 12 in each of six layers, the embedding, and the weight and bias of the output.
It needs no position embeddings, since causal attention tells positions apart, and no dropout, so that all ranks compute
the same.
"""

from __future__ import annotations

import torch
from torch import nn

from hvdlite.bench.training.figures import BATCH, TOKENS

VOCABULARY, WIDTH, LAYERS, HEADS = 8000, 512, 6, 8


class Transformer(nn.Module):
    """Logits of the next token, shape ``(batch, tokens, vocabulary)``, from tokens of shape ``(batch, tokens)``."""

    def __init__(
        self, vocabulary: int = VOCABULARY, width: int = WIDTH, layers: int = LAYERS, heads: int = HEADS
    ) -> None:
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


def make_model() -> Transformer:
    """Makes the model, with the same initial weights in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Transformer()


def make_batch(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and the tokens that follow them, of shape ``(BATCH, TOKENS)``; different on every rank."""
    text = torch.randint(VOCABULARY, (BATCH, TOKENS + 1), generator=torch.Generator().manual_seed(rank))
    return text[:, :-1], text[:, 1:]

"""The model that ``--train keras`` trains: a small transformer that predicts the next token, of Keras's layers.

27,114,304 parameters in 99 tensors: 16 in each of six layers, the embedding, and the weight and bias of the output. It
is the model of ``--train torch`` but for what Keras divides otherwise: queries, keys and values have weights of their
own. There is no dropout, so that all ranks compute the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np

from hvdlite.bench.training.figures import BATCH, TOKENS


class Sizes(NamedTuple):
    """The size of a transformer."""

    vocabulary: int
    width: int
    layers: int
    heads: int


SIZES = Sizes(vocabulary=8000, width=512, layers=6, heads=8)


def make_model() -> keras.Model:
    """Makes the model, with the same initial weights in every process: from tokens to logits of those that follow."""
    keras.utils.set_random_seed(1)
    layers, sizes = keras.layers, SIZES
    tokens = keras.Input((TOKENS,), BATCH, dtype="int32")
    hidden = layers.Embedding(sizes.vocabulary, sizes.width)(tokens)
    for _ in range(sizes.layers):
        seen = layers.LayerNormalization()(hidden)
        attention = layers.MultiHeadAttention(sizes.heads, sizes.width // sizes.heads)
        hidden = layers.add([hidden, attention(seen, seen, use_causal_mask=True)])
        wide = layers.Dense(4 * sizes.width, "relu")(layers.LayerNormalization()(hidden))
        hidden = layers.add([hidden, layers.Dense(sizes.width)(wide)])
    return keras.Model(tokens, layers.Dense(sizes.vocabulary)(hidden))


def make_batch(rank: int) -> tuple[Any, Any]:
    """Tokens and the tokens that follow them, of shape ``(BATCH, TOKENS)``; different on every rank."""
    text = np.random.default_rng(rank).integers(SIZES.vocabulary, size=(BATCH, TOKENS + 1), dtype=np.int32)
    return text[:, :-1], text[:, 1:]

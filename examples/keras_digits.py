"""Trains a small convolutional network of Keras 3 to read handwritten digits, on each of its back ends.

    KERAS_BACKEND=jax python examples/keras_digits.py                 # alone
    KERAS_BACKEND=jax hvdrun -np 2 python examples/keras_digits.py    # two ranks, each on its own half of the images

The back end may also be ``tensorflow`` or ``torch``. The 1,797 images of 8 × 8 pixels come with scikit-learn. hvdlite
needs only the lines marked (1) to (5); without them this is an ordinary script that calls ``fit``.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_digits

import hvdlite.keras as hvd


def main() -> int:
    options = parse_options()
    hvd.init()  # (1) join the job; without hvdrun, a job of one rank
    keras.utils.set_random_seed(options.seed)

    (images, labels), test_set = load_data(options.seed)
    steps = len(images) // (hvd.size() * options.batch_size)  # as many on every rank
    own = slice(hvd.rank(), hvd.size() * options.batch_size * steps, hvd.size())  # (2) each rank its own part

    optimizer = hvd.DistributedOptimizer(keras.optimizers.AdamW(options.lr))  # (3) average gradients over all ranks
    model = make_model()
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # (4) start from the same weights everywhere
        hvd.callbacks.MetricAverageCallback(),  # (5) average metrics over all ranks
        hvd.callbacks.LearningRateScheduleCallback(options.lr, lambda epoch: 1 - epoch / options.epochs),
    ]
    history = model.fit(
        images[own],
        labels[own],
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=test_set,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    accuracy = history.history["val_accuracy"][-1]
    if hvd.rank() == 0:
        print(f"final test accuracy {accuracy:.2%} with {hvd.size()} rank(s) on {keras.backend.backend()}")
    hvd.shutdown()
    return 0 if accuracy >= options.target else 1


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Learn to read handwritten digits.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16, help="images of one rank in one step")
    parser.add_argument("--lr", type=float, default=0.006, help="learning rate of the first epoch")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--target", type=float, default=0.0, help="exit with 1 if the accuracy stays below this")
    return parser.parse_args()


def load_data(seed: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Four fifths of the images for training and one fifth for testing, the same on every rank."""
    digits = load_digits()
    images = digits.images.astype("float32")[..., np.newaxis] / 16
    order = np.random.default_rng(seed).permutation(len(images))
    test, train = np.split(order, [len(order) // 5])
    return (images[train], digits.target[train]), (images[test], digits.target[test])


def make_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.25),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())

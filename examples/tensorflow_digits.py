"""Trains a small convolutional network of TensorFlow to read handwritten digits, in a loop of its own.

    python examples/tensorflow_digits.py                 # alone
    hvdrun -np 2 python examples/tensorflow_digits.py    # two ranks, each on its own half of the images

The 1,797 images of 8 × 8 pixels come with scikit-learn. hvdlite needs only the lines marked (1) to (5); without them
this is an ordinary training script.
"""

from __future__ import annotations

import argparse
import sys

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import hvdlite.tensorflow as hvd


def main() -> int:
    options = parse_options()
    hvd.init()  # (1) join the job; without hvdrun, a job of one rank
    keras.utils.set_random_seed(options.seed)

    train_set, test_set = load_data(options.seed)
    steps = len(train_set[0]) // (options.batch_size * hvd.size())
    own = tuple(part[hvd.rank() :: hvd.size()] for part in train_set)  # (2) each rank its own shard
    batches = tf.data.Dataset.from_tensor_slices(own).shuffle(2000, options.seed).batch(options.batch_size).take(steps)

    model = make_model()
    schedule = keras.optimizers.schedules.CosineDecay(options.lr, decay_steps=options.epochs * steps)
    optimizer = keras.optimizers.Adam(schedule)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)  # (3) start from the same weights
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)  # (4) average gradients over all ranks
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for epoch in range(1, options.epochs + 1):
        losses = [train_step(*batch) for batch in batches]
        loss = hvd.allreduce(tf.reduce_mean(losses))  # (5) average a metric over all ranks
        accuracy = float(np.mean(np.argmax(model(test_set[0], training=False), axis=1) == test_set[1]))
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {float(loss):.4f}, test accuracy {accuracy:.2%}")

    if hvd.rank() == 0:
        print(f"final test accuracy {accuracy:.2%} with {hvd.size()} rank(s)")
    hvd.shutdown()
    return 0 if accuracy >= options.target else 1


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Learn to read handwritten digits.")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16, help="images of one rank in one step")
    parser.add_argument("--lr", type=float, default=0.004, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--target", type=float, default=0.0, help="exit with 1 if the accuracy stays below this")
    return parser.parse_args()


def load_data(seed: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Four fifths of the images for training and one fifth for testing, the same on every rank."""
    digits = load_digits()
    images = digits.images[..., None].astype(np.float32) / 16
    order = np.random.RandomState(seed).permutation(len(images))
    test, train = np.split(order, [len(order) // 5])
    return (images[train], digits.target[train]), (images[test], digits.target[test])


def make_model() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.4),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.4),
            layers.Dense(10),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())

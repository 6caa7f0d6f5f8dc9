"""Reduces the gradients of a step over all ranks: of a tape, and of optimizers of TensorFlow 1."""

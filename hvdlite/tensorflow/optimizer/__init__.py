"""Gradients of a step, reduced over all ranks: those of a tape, and of optimizers of TensorFlow 1."""

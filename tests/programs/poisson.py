"""Solves a Poisson equation with DeepXDE: ``poisson.py SCALING POINTS``. Each rank leaves a file with its result."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

random.seed(1)  # which seeds the weights while DeepXDE is imported

import deepxde as dde  # noqa: E402
import numpy as np  # noqa: E402
from deepxde.backend import tf  # noqa: E402

SCALING, POINTS = sys.argv[1:]

dde.config.set_default_float("float64")
dde.config.set_random_seed(1 + dde.config.rank)  # each rank draws its own points
dde.config.set_parallel_scaling(SCALING)


def solution(x: np.ndarray) -> np.ndarray:
    return np.sin(np.pi * x)


def equation(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return dde.grad.hessian(y, x) + np.pi**2 * tf.sin(np.pi * x)


interval = dde.geometry.Interval(-1, 1)
ends = dde.icbc.DirichletBC(interval, solution, lambda _, on_boundary: on_boundary)
problem = dde.data.PDE(
    interval, equation, ends, int(POINTS), 2, train_distribution="pseudo", solution=solution, num_test=100
)
model = dde.Model(problem, dde.nn.FNN([1, 20, 20, 1], "tanh", "Glorot uniform"))
model.compile("adam", lr=0.005, metrics=["l2 relative error"])
history, state = model.train(iterations=300, display_every=300)
weights = [float(weight.sum()) for weight in model.sess.run(tf.trainable_variables())]
told = {"rank": dde.config.rank, "share": len(problem.train_x_all), "error": float(state.best_metrics[0])}
Path(f"rank.{dde.config.rank}.json").write_text(json.dumps({**told, "weights": weights}))

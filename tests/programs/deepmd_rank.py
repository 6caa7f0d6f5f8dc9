"""``dp``, which here leaves the variables of each rank behind: the program itself saves those of rank 0 only."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from deepmd.main import main
from deepmd.tf.env import tf
from deepmd.tf.train.trainer import DPTrainer

train = DPTrainer.train


def train_and_tell(trainer: DPTrainer, *arguments: Any, **options: Any) -> None:
    train(trainer, *arguments, **options)
    variables = {variable.name.replace("/", "."): variable for variable in tf.global_variables()}
    np.savez(f"rank.{trainer.run_opt.my_rank}.npz", **trainer.sess.run(variables))


DPTrainer.train = train_and_tell
main(sys.argv[1:])

"""Trains until it is told to stop, saves a checkpoint, and resumes from it when it is started again.

    hvdrun -np 2 python examples/torch_preemption.py --checkpoint digits.pt

Slurm, Kubernetes and spot instances send SIGTERM some seconds before they end a job, and hvdrun passes it on to all
ranks. The handler only sets a flag, because it may run at any time, and on one rank a step earlier than on another.
After each step the ranks vote: if any of them has been told to stop, all stop after the same step, and rank 0 saves the
checkpoint.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from torch_digits import evaluate, load_data, make_model

import hvdlite.torch as hvd

is_told_to_stop = False


def stop_soon(*_: Any) -> None:
    global is_told_to_stop
    is_told_to_stop = True


def main() -> int:
    parser = argparse.ArgumentParser(description="Learn to read handwritten digits, and survive being stopped.")
    parser.add_argument("--checkpoint", type=Path, default=Path("digits.pt"))
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, stop_soon)  # before init(), which may wait for other ranks
    hvd.init()
    torch.manual_seed(1)

    train_set, test_set = load_data(seed=1)
    sampler = DistributedSampler(train_set, hvd.size(), hvd.rank())
    batches = DataLoader(train_set, batch_size=16, sampler=sampler)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    step = 0
    if hvd.rank() == 0 and options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    step = hvd.broadcast_object(step)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    if hvd.rank() == 0:
        print(f"begins at step {step}", flush=True)

    model.train()
    while step < options.epochs * len(batches):
        epoch, done = divmod(step, len(batches))
        sampler.set_epoch(epoch)  # the same order as before the stop
        for images, labels in islice(batches, done, None):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            step += 1
            if hvd.allreduce(torch.tensor(is_told_to_stop), op=hvd.Max, name="stop"):
                if hvd.rank() == 0:
                    save(options.checkpoint, model=model.state_dict(), optimizer=optimizer.state_dict(), step=step)
                    print(f"stopped after step {step}", flush=True)
                hvd.shutdown()
                return 0

    accuracy = evaluate(model, test_set)
    if hvd.rank() == 0:
        options.checkpoint.unlink(missing_ok=True)
        print(f"final test accuracy {accuracy:.2%} with {hvd.size()} rank(s)")
    hvd.shutdown()
    return 0


def save(path: Path, **state: Any) -> None:
    """Writes the checkpoint completely or not at all."""
    beside = path.with_name(f"{path.name}.new")
    torch.save(state, beside)
    os.replace(beside, path)


if __name__ == "__main__":
    sys.exit(main())

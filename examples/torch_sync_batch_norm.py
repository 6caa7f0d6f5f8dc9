"""Trains with batch normalization on batches that are too small to normalize on one rank.

    hvdrun -np 4 python examples/torch_sync_batch_norm.py

With two images on each of four ranks, the mean and variance of a rank's own batch are mostly noise. One line makes
every layer normalize over the images of all ranks, as one process with eight images would.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torch_digits import evaluate, load_data

import hvdlite.torch as hvd


def main() -> int:
    parser = argparse.ArgumentParser(description="Learn to read handwritten digits from very small batches.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=2, help="images of one rank in one step")
    parser.add_argument("--own-statistics", action="store_true", help="normalize each rank's images alone, to compare")
    parser.add_argument("--target", type=float, default=0.0, help="exit with 1 if the accuracy stays below this")
    options = parser.parse_args()
    hvd.init()
    torch.manual_seed(1)

    train_set, test_set = load_data(seed=1)
    sampler = DistributedSampler(train_set, hvd.size(), hvd.rank(), seed=1, drop_last=True)
    batches = DataLoader(train_set, options.batch_size, sampler=sampler, drop_last=True)
    model = make_model()
    if not options.own_statistics:
        model = hvd.convert_sync_batchnorm(model)  # before or after the optimizer, since parameters stay the same
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    for epoch in range(1, options.epochs + 1):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        accuracy = evaluate(model, test_set)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: test accuracy {accuracy:.2%}")
    if hvd.rank() == 0:
        print(f"final test accuracy {accuracy:.2%} with {hvd.size()} rank(s)")
    hvd.shutdown()
    return 0 if accuracy >= options.target else 1


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 32, bias=False),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


if __name__ == "__main__":
    sys.exit(main())

"""Trains two networks at once, each on half of the ranks, and averages their predictions.

    hvdrun -np 4 python examples/torch_process_sets.py

The ranks of a process set average gradients among themselves and never wait for the other set. At the end all ranks
together average the predictions of both networks, which are seldom worse than those of the better one.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torch_digits import load_data, make_model

import hvdlite.torch as hvd


def main() -> int:
    parser = argparse.ArgumentParser(description="Learn to read handwritten digits with two networks.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--target", type=float, default=0.0, help="exit with 1 if the accuracy stays below this")
    options = parser.parse_args()
    hvd.init()
    if hvd.size() < 2:
        sys.exit("two networks need two ranks; start this with hvdrun -np 2 or more")

    members = [range(0, hvd.size(), 2), range(1, hvd.size(), 2)]
    teams = [hvd.add_process_set(ranks) for ranks in members]  # every rank registers every set
    team = teams[hvd.rank() % 2]

    torch.manual_seed(hvd.rank() % 2)  # the networks differ in initial weights and order of images
    train_set, test_set = load_data(seed=1)
    sampler = DistributedSampler(train_set, team.size(), team.rank(), seed=hvd.rank() % 2)
    model = make_model()
    train(model, team, DataLoader(train_set, batch_size=16, sampler=sampler), options.epochs)

    images, labels = test_set.tensors
    model.eval()
    with torch.no_grad():
        scores = model(images).softmax(dim=1)
    own = (scores.argmax(dim=1) == labels).float().mean()
    mean_scores = hvd.allreduce(scores, name="scores")  # over all ranks: networks count by their ranks
    together = (mean_scores.argmax(dim=1) == labels).float().mean().item()
    alone = hvd.allgather_object(own.item())
    if hvd.rank() == 0:
        print(f"test accuracy of the networks: {alone[0]:.2%} and {alone[1]:.2%}")
        print(f"final test accuracy {together:.2%} with {hvd.size()} rank(s)")
    hvd.shutdown()
    return 0 if together >= options.target else 1


def train(model: nn.Module, team: hvd.ProcessSet, batches: DataLoader[tuple[torch.Tensor, ...]], epochs: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), process_set=team)
    hvd.broadcast_parameters(model.state_dict(), root_rank=team.ranks[0], process_set=team)
    model.train()
    for epoch in range(epochs):
        batches.sampler.set_epoch(epoch)
        for images, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()


if __name__ == "__main__":
    sys.exit(main())

"""Trains on shards of different sizes: no image is left out or repeated, and no rank waits for another.

    hvdrun -np 3 python examples/torch_uneven_join.py

Rank r has r + 1 parts of the images. A rank that has seen all of its images calls `join` and contributes zeros to the
gradients of the others, which continue. An average still divides by all ranks, so the last steps of an epoch are
smaller, in proportion to the images that they are made of.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset
from torch_digits import evaluate, load_data, make_model

import hvdlite.torch as hvd


def main() -> int:
    parser = argparse.ArgumentParser(description="Learn to read handwritten digits from uneven shards.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--target", type=float, default=0.0, help="exit with 1 if the accuracy stays below this")
    options = parser.parse_args()
    hvd.init()
    torch.manual_seed(1)

    train_set, test_set = load_data(seed=1)
    batches = DataLoader(uneven_shard(train_set), batch_size=16, shuffle=True)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    model.train()
    for epoch in range(1, options.epochs + 1):
        for images, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        last = hvd.join()  # waits for all ranks; returns the one that took the last step
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        hvd.broadcast_optimizer_state(optimizer, root_rank=last)
        counts = hvd.allgather_object(len(batches))
        if hvd.rank() == 0:
            print(f"epoch {epoch}: ranks took {counts} steps, rank {last} the last one")

    accuracy = evaluate(model, test_set)
    if hvd.rank() == 0:
        print(f"final test accuracy {accuracy:.2%} with {hvd.size()} rank(s)")
    hvd.shutdown()
    return 0 if accuracy >= options.target else 1


def uneven_shard(images: torch.utils.data.TensorDataset) -> Subset[tuple[torch.Tensor, ...]]:
    """Returns this rank's images: of 1 + 2 + ... + N parts, rank 0 has the first, rank 1 the next two, and so on."""
    parts = sum(range(hvd.size() + 1))
    start = len(images) * sum(range(hvd.rank() + 1)) // parts
    end = len(images) * sum(range(hvd.rank() + 2)) // parts
    return Subset(images, range(start, end))


if __name__ == "__main__":
    sys.exit(main())

"""Trains in mixed precision, with loss scaling and gradient clipping.

    hvdrun -np 2 python examples/torch_clipping_amp.py

Clipping and unscaling change gradients, so they come between `synchronize`, which reduces them, and `step`, which must
not reduce them again. An overflow on one rank is in the sum on all ranks, so all skip the same step.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torch_digits import evaluate, load_data, make_model

import hvdlite.torch as hvd


def main() -> int:
    parser = argparse.ArgumentParser(description="Learn to read handwritten digits in mixed precision.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of all gradients together")
    parser.add_argument("--target", type=float, default=0.0, help="exit with 1 if the accuracy stays below this")
    options = parser.parse_args()
    hvd.init()
    torch.manual_seed(1)

    train_set, test_set = load_data(seed=1)
    sampler = DistributedSampler(train_set, hvd.size(), hvd.rank(), seed=1)
    batches = DataLoader(train_set, batch_size=16, sampler=sampler)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=hvd.Compression.bf16)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    model.train()
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in batches:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            optimizer.synchronize()  # from here on, gradients are averages over all ranks
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()

    scales = hvd.allgather_object(scaler.get_scale())
    accuracy = evaluate(model, test_set)
    if hvd.rank() == 0:
        print(f"loss scale {scales[0]:.0f} on {scales.count(scales[0])} of {hvd.size()} rank(s)")
        print(f"final test accuracy {accuracy:.2%} with {hvd.size()} rank(s)")
    hvd.shutdown()
    return 0 if accuracy >= options.target else 1


if __name__ == "__main__":
    sys.exit(main())

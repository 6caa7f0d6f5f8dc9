"""Trains on GPUs to read handwritten digits, one GPU for each rank; on CPUs where there are none.

    python examples/torch_gpu.py                    # alone
    hvdrun -np auto python examples/torch_gpu.py    # a rank for each GPU of this host

A script for CPUs needs the lines marked (1) to (3). Everything else is as it was: collectives of CUDA tensors are
ordered by the current stream, so nothing waits for the GPU but what prints.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn
from torch_digits import load_data, make_model

import hvdlite.torch as hvd


def main() -> int:
    parser = argparse.ArgumentParser(description="Learn to read handwritten digits on GPUs.")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="images of one rank in one step")
    parser.add_argument("--target", type=float, default=0.0, help="exit with 1 if the accuracy stays below this")
    options = parser.parse_args()
    hvd.init()
    device = choose_device()
    torch.manual_seed(1)

    train_set, test_set = load_data(seed=1)
    images, labels = (tensor.to(device) for tensor in train_set.tensors)  # (2) so few that they all fit
    model = make_model().to(device)  # (3) before the optimizer
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    shuffle = torch.Generator().manual_seed(1)  # the same on all ranks, which take turns in the images
    for epoch in range(1, options.epochs + 1):
        model.train()
        order = torch.randperm(len(labels), generator=shuffle)
        share = len(labels) // hvd.size()
        for batch in order[: share * hvd.size()].view(share, -1)[:, hvd.rank()].split(options.batch_size):
            batch = batch.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        accuracy = evaluate(model, test_set.tensors, device)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}, test accuracy {accuracy:.2%}")
    if hvd.rank() == 0:
        print(f"final test accuracy {accuracy:.2%} with {hvd.size()} rank(s) on {device.type}")
    hvd.shutdown()
    return 0 if accuracy >= options.target else 1


def choose_device() -> torch.device:
    """Returns this rank's GPU, which becomes the current one, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    index = hvd.local_rank() % torch.cuda.device_count()
    torch.cuda.set_device(index)  # (1) before anything is on a GPU
    return torch.device("cuda", index)


@torch.no_grad()
def evaluate(model: nn.Module, test_set: tuple[torch.Tensor, ...], device: torch.device) -> float:
    """Returns the share of the test images that is read correctly; each rank evaluates a part of them."""
    model.eval()
    images, labels = (tensor[hvd.rank() :: hvd.size()].to(device) for tensor in test_set)
    correct = (model(images).argmax(dim=1) == labels).sum()
    return hvd.allreduce(correct, op=hvd.Sum, name="correct").item() / len(test_set[0])


if __name__ == "__main__":
    sys.exit(main())

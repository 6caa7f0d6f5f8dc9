"""A script of plain torch DDP, as torchrun starts it, without a word of hvdlite."""

import torch
import torch.distributed as dist
from torch import nn


def train(rank: int, size: int) -> None:
    torch.manual_seed(rank)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 2)).square().mean().backward()
        optimizer.step()
    print(f"trained {rank} of {size}: {[value for each in model.parameters() for value in each.flatten().tolist()]}")


dist.init_process_group("gloo")
train(dist.get_rank(), dist.get_world_size())
# The model is gone, so this ends Gloo's threads. One that still ran when Python ends would abort the process, if it had
# the last reference to a tensor (https://github.com/pytorch/pytorch/pull/179291).
dist.destroy_process_group()

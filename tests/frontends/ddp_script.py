"""A script of plain torch DDP, as torchrun starts it, without a word of hvdlite."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 2)).square().mean().backward()
    optimizer.step()
print(f"trained {rank} of {size}: {[value for each in model.parameters() for value in each.flatten().tolist()]}")
dist.destroy_process_group()

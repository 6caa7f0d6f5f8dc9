"""Trains a small convolutional network to read handwritten digits, with any number of ranks.

    python examples/torch_digits.py                 # alone
    hvdrun -np 2 python examples/torch_digits.py    # two ranks, each on its own half of the images

The 1,797 images of 8 × 8 pixels come with scikit-learn. hvdlite needs only the lines marked (1) to (5); without them
this is an ordinary training script.
"""

from __future__ import annotations

import argparse
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

import hvdlite.torch as hvd


def main() -> int:
    options = parse_options()
    hvd.init()  # (1) join the job; without hvdrun, a job of one rank
    torch.manual_seed(options.seed)

    train_set, test_set = load_data(options.seed)
    sampler = DistributedSampler(train_set, hvd.size(), hvd.rank(), seed=options.seed)  # (2) each rank its own shard
    batches = DataLoader(train_set, options.batch_size, sampler=sampler)

    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # (3) average gradients over all ranks
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # (4) start from the same weights everywhere
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, total_steps=options.epochs * len(batches))

    losses, accuracies = [], []
    with tqdm(total=schedule.total_steps, unit="batch", disable=hvd.rank() != 0) as progress:
        for epoch in range(1, options.epochs + 1):
            sampler.set_epoch(epoch)
            losses.append(train(model, optimizer, schedule, batches, progress))
            accuracies.append(evaluate(model, test_set))
            if hvd.rank() == 0:
                progress.write(f"epoch {epoch}: loss {losses[-1]:.4f}, test accuracy {accuracies[-1]:.2%}")

    if hvd.rank() == 0:
        if options.plot:
            plot(options.plot, losses, accuracies)
        print(f"final test accuracy {accuracies[-1]:.2%} with {hvd.size()} rank(s)")
    hvd.shutdown()
    return 0 if accuracies[-1] >= options.target else 1


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Learn to read handwritten digits.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16, help="images of one rank in one step")
    parser.add_argument("--lr", type=float, default=0.006, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--plot", metavar="FILE.png", help="draw loss and accuracy over the epochs")
    parser.add_argument("--target", type=float, default=0.0, help="exit with 1 if the accuracy stays below this")
    return parser.parse_args()


def load_data(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Four fifths of the images for training and one fifth for testing, the same on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    test, train = order.split([len(order) // 5, len(order) - len(order) // 5])
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 4 * 4, 10),
    )


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    batches: DataLoader[tuple[torch.Tensor, ...]],
    progress: tqdm[None],
) -> float:
    """One epoch; returns the mean loss over the batches of all ranks."""
    model.train()
    total = torch.zeros(())
    for images, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.detach()
        progress.update()
    return hvd.allreduce(total / len(batches), name="train loss").item()  # (5) average over all ranks


@torch.no_grad()
def evaluate(model: nn.Module, test_set: TensorDataset) -> float:
    """Returns the share of the test images that is read correctly; each rank evaluates a part of them."""
    model.eval()
    images, labels = (tensor[hvd.rank() :: hvd.size()] for tensor in test_set.tensors)
    correct = (model(images).argmax(dim=1) == labels).sum()
    return hvd.allreduce(correct, op=hvd.Sum, name="correct").item() / len(test_set)


def plot(path: str, losses: list[float], accuracies: list[float]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    epochs = range(1, len(losses) + 1)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.plot(epochs, losses, marker=".")
    left.set(title="Training loss", xlabel="epoch", yscale="log")
    right.plot(epochs, [100 * accuracy for accuracy in accuracies], marker=".", color="tab:green")
    right.set(title="Test accuracy", xlabel="epoch", ylabel="%")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    sys.exit(main())

"""Collectives over torch tensors: eager, in torch's graph of gradients, and under `torch.compile`."""

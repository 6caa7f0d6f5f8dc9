"""hvdlite with one way of fusing all-reduces on a GPU, whatever `is_worth_packing` decides otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from hvdlite.bench.measuring.systems import Hvdlite, Tensor
from hvdlite.planes.nccl import packing

WAYS: Final = {"grouped": 0.0, "packed": math.inf}
"""What each further tensor of a group is taken to cost, by the name of the system."""


class Fused(Hvdlite):
    """hvdlite whose all-reduces of several tensors are always "grouped", or always "packed"."""

    def __init__(self, label: str) -> None:
        super().__init__(uses_torch=True)
        self.label = label

    def allreduce_all(self, tensors: Sequence[Tensor], names: Sequence[str]) -> None:
        # All ranks come here before one of these tensors is launched, since it takes the submits of all.
        usual, packing.TENSOR_US = packing.TENSOR_US, WAYS[self.label]
        try:
            super().allreduce_all(tensors, names)  # returns after the launch
        finally:
            packing.TENSOR_US = usual

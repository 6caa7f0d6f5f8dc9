"""The names of a torch optimizer's parameters, and the names that scripts of Horovod read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

Named = tuple[str, torch.Tensor]
ParamGroup = dict[str, Any]


def group_names(group: ParamGroup, index: int) -> dict[torch.Tensor, str]:
    """Returns a parameter group's names from ``named_parameters``, or else the positions of its parameters."""
    default = [f"noname.{index}.{place}" for place in range(len(group["params"]))]
    return dict(zip(group["params"], group.get("param_names", default), strict=True))


def names_by_place(groups: Sequence[ParamGroup]) -> dict[torch.Tensor, str]:
    """Returns `group_names` of all ``groups``, in the optimizer's order."""
    return {
        parameter: name for index, group in enumerate(groups) for parameter, name in group_names(group, index).items()
    }


def horovod_names(names: Mapping[torch.Tensor, str]) -> dict[torch.Tensor, str]:
    """Returns ``names`` in the form of Horovod's ``_parameter_names``, which scripts read."""
    return {parameter: f"allreduce.{name}" if name.startswith("noname.") else name for parameter, name in names.items()}

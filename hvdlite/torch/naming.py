"""Names for parameters, equal on all ranks and in every step: a name is how ranks find each other's gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

ParamGroup = dict[str, Any]


def group_names(group: ParamGroup, index: int) -> dict[torch.Tensor, str]:
    """The names that a parameter group has from ``named_parameters``, or else the places of its parameters."""
    default = [f"noname.{index}.{place}" for place in range(len(group["params"]))]
    return dict(zip(group["params"], group.get("param_names", default), strict=True))


def names_of(
    groups: Sequence[ParamGroup], named_parameters: Iterable[tuple[str, Any]] | None
) -> dict[torch.Tensor, str]:
    """The name of every parameter of an optimizer, in the optimizer's order.

    Raises ValueError if ``named_parameters`` are not pairs, name something twice, or leave a parameter out.
    """
    by_place = {
        parameter: name for index, group in enumerate(groups) for parameter, name in group_names(group, index).items()
    }
    if named_parameters is None:
        return by_place
    given = _checked(named_parameters)
    missing = [
        f"{name} of shape {tuple(parameter.shape)}" for parameter, name in by_place.items() if parameter not in given
    ]
    if missing:
        raise ValueError(
            f"named_parameters leaves out parameters of the optimizer: {', '.join(missing)}; "
            "pass the named_parameters() of every model that it optimizes"
        )
    return {parameter: given[parameter] for parameter in by_place}


def _checked(named_parameters: Iterable[tuple[str, Any]]) -> dict[torch.Tensor, str]:
    pairs = list(named_parameters)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise ValueError(
                "named_parameters must be pairs of a name and a parameter, as model.named_parameters() gives them; "
                f"got a {type(pair).__name__}"
            )
    repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if repeated:
        raise ValueError(f"named_parameters names more than one parameter {', '.join(repeated)}; names must be unique")
    return {parameter: name for name, parameter in pairs}

"""Buckets of parameters that are reduced together, from the user's ``groups``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hvdlite.training.naming import P

Groups = int | Sequence[Sequence[P]] | None
Bucket = list[tuple[str, P]]


def in_buckets(names: dict[P, str], groups: Groups[P], kind: type) -> list[Bucket[P]]:
    """Divides the named parameters, of class ``kind``, into buckets.

    ``groups`` is None for one bucket each, a number of buckets, or lists of parameters: a bucket each, and one for each
    parameter in no list. Raises ValueError for anything else, for a parameter in two lists, and for one that the
    optimizer does not have.
    """
    if groups is None:
        return [[(name, parameter)] for parameter, name in names.items()]
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups <= 0:
            raise ValueError(f"groups must be a positive number or lists of parameters, got {groups}")
        members = [(name, parameter) for parameter, name in names.items()]
        edges = [len(members) * index // groups for index in range(groups + 1)]
        return [members[start:end] for start, end in pairwise(edges) if start < end]
    if not isinstance(groups, (list, tuple)) or not all(isinstance(each, (list, tuple)) for each in groups):
        raise ValueError(f"groups must be a positive number or lists of parameters, got {_shown(groups)}")
    return _listed(names, groups, kind)


def merged(groups: Groups[P], num_groups: int) -> Groups[P]:
    """Returns ``groups``, or else ``num_groups``, its former name, with a warning unless that is 0.

    Raises ValueError for both together, and for a ``num_groups`` that is not a whole number from 0.
    """
    if isinstance(num_groups, bool) or not isinstance(num_groups, int) or num_groups < 0:
        raise ValueError(f"num_groups must be a non-negative integer, got {_shown(num_groups)}")
    if num_groups == 0:
        return groups
    warnings.warn("num_groups is deprecated; pass groups instead", DeprecationWarning, stacklevel=3)
    if groups is not None:
        raise ValueError("pass either groups or num_groups, not both; groups is the one to keep")
    return num_groups


def _listed(names: dict[P, str], groups: Sequence[Sequence[P]], kind: type) -> list[Bucket[P]]:
    rest = dict(names)
    buckets = []
    for group in groups:
        for parameter in group:
            if not isinstance(parameter, kind):
                raise ValueError(f"groups must be lists of parameters, but one has {_shown(parameter)}")
            if parameter not in names:
                raise ValueError(
                    f"groups has a parameter of shape {tuple(parameter.shape)} that the optimizer does not have"
                )
            if rest.pop(parameter, None) is None:
                raise ValueError(f"groups has parameter {names[parameter]!r} more than once")
        if group:
            buckets.append([(names[parameter], parameter) for parameter in group])
    return buckets + [[(name, parameter)] for parameter, name in rest.items()]


def _shown(value: Any) -> str:
    return f"{value!r}" if isinstance(value, (int, float, str)) else f"a {type(value).__name__}"

"""Names of parameters, by which ranks match their gradients: the same on all ranks and in every step."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

from hvdlite.ops import Group


class Parameter(Protocol):
    """A trained variable of a front end: an object that is equal only to itself, and has a shape."""

    def __hash__(self) -> int: ...

    @property
    def shape(self) -> Any:
        """Its extents."""


P = TypeVar("P", bound=Parameter)


def names_of(by_place: Mapping[P, str], named_parameters: Iterable[tuple[str, Any]] | None) -> dict[P, str]:
    """Returns the names of an optimizer's parameters, in its order: the given names, or names made of positions.

    Raises ValueError if ``named_parameters`` are not pairs, repeat a name, or leave a parameter out.
    """
    if named_parameters is None:
        return dict(by_place)
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


def known_as(group: Group, kind: str, members: Iterable[tuple[str, P]]) -> list[tuple[str, P]]:
    """Pairs the members with their names on the wire: ``gradient.weight``, then ``gradient.weight#2``.

    Parameters of several optimizers may have one name, so the uses of each name are counted in each ``group``. Ranks
    need only make the optimizers that share a name in the same order.
    """
    return [(unique(group, f"{kind}.{name}"), parameter) for name, parameter in members]


def unique(group: Group, name: str) -> str:
    """Returns ``name``, with a number from its second use in ``group`` on."""
    uses = _uses.setdefault(group, Counter())
    uses[name] += 1
    return name if uses[name] == 1 else f"{name}#{uses[name]}"


_uses: weakref.WeakKeyDictionary[Group, Counter[str]] = weakref.WeakKeyDictionary()


def _checked(named_parameters: Iterable[tuple[str, Any]]) -> dict[Any, str]:
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

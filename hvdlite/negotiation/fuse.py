"""Packs agreed tensors into batches.

Tensors of one fuse class run together up to ``threshold`` bytes; a larger tensor runs alone. Nothing is copied: a batch
is a list of spans. Cached tensors come first, in the order of their bits, then new tensors in the order in which they
were agreed. If a whole class fits, as it usually does, its tensors are not visited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hvdlite.negotiation.bits import members
from hvdlite.negotiation.cache import Definition, Definitions, FuseClass, FuseKey, fuse_key
from hvdlite.negotiation.messages import Batch, Response


class Agreed(NamedTuple):
    """The response for a tensor that was requested by name, and its definition."""

    response: Response
    definition: Definition


def fuse(bits: int, definitions: Definitions, agreed: Sequence[Agreed], threshold: int) -> Iterator[Batch]:
    """Yields batches that hold each tensor of ``bits`` and ``agreed`` once."""
    new_by_class: dict[FuseKey, list[Agreed]] = {}
    for item in agreed:
        new_by_class.setdefault(fuse_key(item.definition.request), []).append(item)
    for key, known in definitions.classes.items():
        chosen = known.bits & bits
        new = new_by_class.pop(key, [])
        if chosen or new:
            yield from _pack(chosen, known, definitions, new, threshold)
    for new in new_by_class.values():
        yield from _pack(0, FuseClass(), definitions, new, threshold)


def _pack(
    bits: int, known: FuseClass, definitions: Definitions, new: Sequence[Agreed], threshold: int
) -> Iterator[Batch]:
    if not new and known.nbytes <= threshold:  # the usual case, so it does not count the bytes of ``bits``
        yield Batch(bits, ())
        return
    new_bytes = sum(item.definition.nbytes for item in new)
    if known.nbytes + new_bytes <= threshold:
        yield Batch(bits, tuple(item.response for item in new))
        return
    batch_bits, batch_new, filled = 0, list[Response](), 0
    for bit in members(bits) if bits else ():
        nbytes = definitions[bit].nbytes
        if batch_bits and filled + nbytes > threshold:
            yield Batch(batch_bits, ())
            batch_bits, filled = 0, 0
        batch_bits |= 1 << bit
        filled += nbytes
    for item in new:
        nbytes = item.definition.nbytes
        if (batch_bits or batch_new) and filled + nbytes > threshold:
            yield Batch(batch_bits, tuple(batch_new))
            batch_bits, batch_new, filled = 0, [], 0
        batch_new.append(item.response)
        filled += nbytes
    yield Batch(batch_bits, tuple(batch_new))

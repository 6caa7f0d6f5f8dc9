"""A group of ranks that run collectives among themselves: all ranks of the job, or those of a process set.

Every group has an engine of its own, with its own links, data plane and threads. So groups share nothing that one could
hold up for another: what happens in one is neither negotiated with, nor queued behind, the tensors of another.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from hvdlite.engine.callers import HERE, Callers, Counter
from hvdlite.engine.engine import Engine
from hvdlite.members.membership import Membership
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import Kind, Request
from hvdlite.negotiation.unnamed import Unnamed
from hvdlite.tensors.buffer import address_of
from hvdlite.tensors.dtypes import DType, Sum


class Group:
    """This rank's membership in a group.

    ``ranks`` are the members by their numbers in the job, ascending; ``rank`` is this one's index among them.
    ``submit``, ``submit_all``, ``run``, ``run_all``, ``run_parts``, ``burst``, ``wait``, ``watch``, ``known`` and
    ``statistics`` are the engine's. ``joins`` is how often all ranks have joined: the same on every rank that is in no
    join. ``interrupted_join`` is the entry of a `join` whose call a signal handler interrupted on this rank.
    """

    def __init__(self, membership: Membership, engine: Engine) -> None:
        self.membership = membership
        self.ranks = membership.ranks
        self.rank = membership.rank
        self.size = membership.size
        self.engine = engine
        self.submit = engine.submit
        self.submit_all = engine.submit_all
        self.run = engine.run
        self.run_all = engine.run_all
        self.burst = engine.burst
        self.run_parts = engine.run_parts
        self.wait = engine.wait
        self.watch = engine.watch
        self.known = engine.known
        self.statistics = engine.statistics
        self._index_of = {member: index for index, member in enumerate(self.ranks)}
        self.joins = 0
        self.interrupted_join: Entry[int] | None = None
        self._names: defaultdict[Counter, Iterator[int]] = defaultdict(itertools.count)
        self._callers = Callers(membership.number)

    def index_of(self, rank: int) -> int | None:
        """Converts a rank's number in the job to its index in the group; None if it is no member."""
        return self._index_of.get(rank)

    def unnamed(self, kind: Kind, *between: Any) -> Unnamed:
        """Returns a placeholder for the next automatic name.

        Calls are counted for each kind of collective, and for each set of ranks where only some take part. Raises
        ValueError if another thread makes such calls; see `Callers`.
        """
        counter = (kind, *between)
        if self._callers.get(counter) is not HERE.thread:
            self._callers.admit(counter)
        return Unnamed(partial(self._next_name, counter))

    def _next_name(self, counter: Counter) -> str:
        kind, number = counter[0], next(self._names[counter])
        return f"{kind}.noname.{self.joins}.{number}" if self.joins else f"{kind}.noname.{number}"

    def count_anew(self) -> None:
        """Restarts all counters of automatic names, because ranks had different numbers of tensors until now.

        Every rank calls it with the same batch. Names that are still in flight do not come again.
        """
        self.joins += 1
        self._names.clear()

    def exchange(self, purpose: str, offer: Any) -> list[Any]:
        """Publishes ``offer`` (JSON) and returns the offers of all ranks, in rank order, for the same ``purpose``.

        Raises the error of the collective if it fails.
        """
        name = Unnamed(lambda: f"{purpose}.{self._next_name((Kind.ALLGATHER, purpose))}")
        line = np.frombuffer(json.dumps(offer).encode() + b"\n", np.uint8)

        def allocate(shape: tuple[int, ...], rows: tuple[int, ...]) -> tuple[Any, int]:
            output = np.empty(shape, np.uint8)
            return output, address_of(output)

        request = Request(name, Kind.ALLGATHER, DType.UINT8, line.shape, Sum, 1.0, 1.0, 0, cacheable=False)
        entry = Entry(request, self, address_of(line), owner=line, allocate=allocate)
        self.run(entry)
        if entry.error is not None:
            raise copy.copy(entry.error) from entry.error.__cause__
        return [json.loads(each) for each in entry.output.tobytes().splitlines()]

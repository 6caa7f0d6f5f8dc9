"""Process sets as users see them: some ranks of the job, that run collectives among themselves."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any


class ProcessSet:
    """Some ranks of the job. Collectives take it once it is registered, by ``init`` or ``add_process_set``.

    ``ranks`` are their numbers in the job, ascending. ``process_set_id`` is None, and so is what the methods return,
    while the set is not registered. ``mpi_comm`` exists for programs written for Horovod, and is always None.
    """

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        """Raises ValueError for anything but distinct rank numbers."""
        self.ranks: list[int] | None = _checked(ranks_or_comm)
        self.process_set_id: int | None = None
        self.mpi_comm: None = None
        self._own_rank: int | None = None

    def size(self) -> int | None:
        """The number of ranks in the set."""
        return None if self._own_rank is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """The index of this rank in the set, from 0; None also if it is not in the set."""
        return self.ranks.index(self._own_rank) if self.ranks and self._own_rank in self.ranks else None

    def included(self) -> bool | None:
        """True if this rank is in the set."""
        return None if self._own_rank is None else self.rank() is not None

    def register(self, process_set_id: int, ranks: Sequence[int], own_rank: int) -> None:
        """Makes the set known by ``process_set_id`` on rank ``own_rank``."""
        self.process_set_id, self.ranks, self._own_rank = process_set_id, list(ranks), own_rank

    def unregister(self) -> None:
        """Undoes `register`. The set may be registered again."""
        self.process_set_id = self._own_rank = None

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessSet:
        """Returns the set itself, so that a copy of its holder, such as a module, uses the same set."""
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickles the ranks only; a loaded set must be registered."""
        return ProcessSet, (self.ranks,)

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm=None)"


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job: always number 0, and its ``ranks`` are known after ``init``."""

    def __init__(self) -> None:
        super().__init__((0,))
        self.unregister()

    def unregister(self) -> None:
        super().unregister()
        self.process_set_id = 0
        self.ranks = None

    def __reduce__(self) -> str:
        """Pickles a reference: loaded elsewhere, it is the global set of that process."""
        return "global_process_set"


def _checked(ranks_or_comm: Any) -> list[int]:
    if hasattr(ranks_or_comm, "Get_rank"):
        raise ValueError("mpi4py's communicators are not supported; pass rank numbers, as in ProcessSet([0, 1])")
    try:
        ranks = sorted(operator.index(rank) for rank in ranks_or_comm)
    except TypeError:
        raise ValueError(
            f"a process set takes rank numbers, as in ProcessSet([0, 1]), not {ranks_or_comm!r:.60}"
        ) from None
    if not ranks:
        raise ValueError("a process set needs at least one rank")
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"a rank is repeated in process set {ranks}; list each once")
    if ranks[0] < 0:
        raise ValueError(f"process set {ranks} has a negative rank; ranks count from 0")
    return ranks


global_process_set: ProcessSet = _GlobalProcessSet()
"""All ranks of the job: the set of every collective that is given no other."""


def given_sets(given: Sequence[ProcessSet | Sequence[int]] | str | None) -> list[ProcessSet]:
    """The process sets that ``init`` was ``given``. Raises ValueError for anything else."""
    if isinstance(given, str):
        if given.lower() != "dynamic":
            raise ValueError(f'process_sets is a list of process sets or "dynamic", not {given!r}')
        return []
    return [each if isinstance(each, ProcessSet) else ProcessSet(each) for each in given or ()]


def refuse_part(comm: Sequence[int] | None, size: int) -> None:
    """Raises ValueError if ``comm`` is only a part of the ranks of a job of ``size``."""
    if comm is None or comm == []:
        return
    ranks = ProcessSet(comm).ranks
    if ranks != list(range(size)):
        raise ValueError(
            f"comm={ranks} is not all ranks of this job, which are 0 to {size - 1}; call init() on all of them and "
            "pass process_sets, or call add_process_set(), for collectives among some"
        )

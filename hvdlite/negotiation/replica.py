"""A rank's side of the negotiation: its messages to the root, and the effect of the root's runs.

Every rank of a group applies the same runs in the same order, so all replicas remember the same tensors and run the
same batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from hvdlite.negotiation.bits import members, set_of
from hvdlite.negotiation.cache import Cache
from hvdlite.negotiation.delays.arrival import Arrival
from hvdlite.negotiation.entry import Entry, of_joined
from hvdlite.negotiation.fuse import fuse
from hvdlite.negotiation.messages import JOIN_NAME, Batch, Common, Ready, Request, Response, Run, Tuning
from hvdlite.negotiation.rows import Rows
from hvdlite.negotiation.unnamed import Unnamed, signed
from hvdlite.negotiation.wire import ProtocolError

_MOST_IN_VAIN = 3  # then calls without a name are requested for a while: ranks make them in several ways, or are busy
_LONGEST_WHILE = 4096  # batches


@dataclass(slots=True, eq=False, repr=False)
class Work:
    """A batch on this rank: its entries, and the agreed rows of each (`hvdlite.negotiation.rows`).

    ``number`` counts from 1, and is the same on all ranks. ``is_carried``: the bytes of all ranks are in the page.
    Turns and the executor set the other fields, for the observer. Times are of the monotonic clock. ``finished_at``,
    when the handles were done, exists only if times are kept (`hvdlite.engine.inflight.InFlight`).
    """

    entries: Sequence[Entry]
    rows: Sequence[Rows]
    number: int
    nbytes: int = 0
    is_carried: bool = False
    tensors: int = field(init=False)
    arrival: Arrival | None = field(init=False)
    sent_at: float = field(init=False)
    agreed_at: float = field(init=False)
    moved_at: float = field(init=False)
    done_at: float = field(init=False)
    waited_s: float = field(init=False)
    finished_at: float = field(init=False)


class Mismatched(NamedTuple):
    """An entry that does not run, and why."""

    entry: Entry
    reason: str


class InFlight(Protocol):
    """The entries in flight on this rank."""

    def number(self, entry: Entry) -> bool:
        """Gives ``entry`` an automatic name. False if the name is in use."""

    def count(self, entry: Entry) -> bool:
        """The same, but if the name is in use, ``entry`` is not in flight any more."""


def is_last_of_a_while(batches: int) -> bool:
    """True for the powers of two, and the multiples of the longest while, so that all ranks try again together."""
    return not batches % _LONGEST_WHILE or not batches & (batches - 1)


class Replica:
    """The state of one rank.

    ``cache``, ``batches`` (how many it has returned), ``calls`` (how many ran before without it; turns set it) and
    ``tuning`` (None before the first run) are the same on all ranks after the same run. ``by_bit`` has the unanswered
    entries that were submitted as bits; this rank has no value for the bits in ``_blank_bits``. ``_by_name`` has the
    other unanswered entries. On a rank that has joined, an answered entry may still be in flight when the root answers
    its name again, so neither table may keep answered entries. ``signed_in_vain``: how often in a row a call without a
    name was requested although its description was known; calls that are done set it to 0.
    """

    def __init__(self, rank: int, in_flight: InFlight) -> None:
        self._rank = rank
        self._in_flight = in_flight
        self.batches = self.calls = 0
        self.cache = Cache()
        self.tuning: Tuning | None = None
        self.by_bit: dict[int, Entry] = {}
        self._by_name: dict[str, Entry] = {}
        self._blank_bits = 0
        self._adopted: tuple[int, Entry] | None = None  # the latest call without a name that was submitted as a bit
        self.signed_in_vain = 0

    def submit(self, entries: Sequence[Entry]) -> Ready:
        """Records new entries, and returns the message that reports them to the root."""
        bits: list[int] = []
        requests: list[Request] = []
        blank_bits = blank_requests = 0
        known, by_bit = self.cache.known, self.by_bit
        for entry in entries:
            request = entry.request
            seen = known.get(entry.name)
            if seen is not None and (seen.request is request or seen.request == request):
                bit = seen.bit
                bits.append(bit)
                by_bit[bit] = entry
                if entry.is_blank:
                    blank_bits |= 1 << bit
            elif type(entry.name) is not Unnamed or self._in_flight.count(entry):
                if entry.is_blank:
                    blank_requests |= 1 << len(requests)
                requests.append(entry.request)
                self._by_name[entry.name] = entry
        if requests and (lists := {request.group_name for request in requests if request.group_length}):
            # All tensors of a list go the same way, so that they arrive together, and before a join.
            partial = [
                entry
                for entry in entries
                if entry.request.group_length
                and entry.request.group_name in lists
                and self._by_name.get(entry.name) is not entry
            ]
            for entry in partial:
                bit = known[entry.name].bit
                del by_bit[bit]
                blank_bits &= ~(1 << bit)
                self._by_name[entry.name] = entry
            bits = [bit for bit in bits if bit in by_bit]
            requests = [entry.request for entry in partial] + requests
            blank_requests <<= len(partial)
            blank_requests |= set_of([index for index, entry in enumerate(partial) if entry.is_blank])
        self._blank_bits |= blank_bits
        return Ready(self.cache.generation, set_of(bits), tuple(requests), blank_bits, blank_requests)

    def unanswered(self) -> Ready:
        """Returns a message that reports all unanswered bits once more, but requests a call without a name."""
        requests: tuple[Request, ...] = ()
        adopted, self._adopted = self._adopted, None
        if adopted is not None and self.by_bit.get(adopted[0]) is adopted[1]:
            bit, entry = adopted
            del self.by_bit[bit]
            if type(entry.name) is not Unnamed or self._in_flight.count(entry):
                self._by_name[entry.name] = entry
                requests = (entry.request,)
            self.signed_in_vain += 1
            if self.signed_in_vain == _MOST_IN_VAIN:
                self.cache.forget_unnamed()
        bits = set_of(list(self.by_bit))
        return Ready(self.cache.generation, bits, requests, self._blank_bits & bits)

    def run_of(self, common: Common) -> Run:
        """Cuts a decision of the page into batches, which are the same on all ranks."""
        assert self.tuning is not None  # a rank knows no tensor before the first run
        rest = common.bits ^ common.carried_bits
        batches = [Batch(common.carried_bits, ())] if common.carried_bits else []
        batches += fuse(rest, self.cache.definitions, (), self.tuning.fusion_threshold) if rest else ()
        return Run(self.cache.generation, tuple(batches), common.blank_bits)

    def adopt(self, bit: int, entry: Entry) -> None:
        """Records an entry that was submitted as ``bit`` without `submit`."""
        self.by_bit[bit] = entry
        if type(entry.name) is Unnamed:
            self._adopted = bit, entry
            self._in_flight.number(entry)

    def apply(self, decision: Run | Common) -> tuple[list[Work], list[Mismatched]]:
        """Applies a decision of the root or of the page. Returns the batches to run, in order, and the failing entries.

        Raises ProtocolError if it names something that this rank did not submit.
        """
        run = self.run_of(decision) if isinstance(decision, Common) else decision
        if run.tuning is not None:
            self.tuning = run.tuning
        if self.cache.begin(run.generation):  # the root answers forgotten bits by name
            self._by_name.update((entry.name, entry) for entry in self.by_bit.values())
            self.by_bit.clear()
            self._blank_bits = 0
        if self._blank_bits:
            self._settle_blank(run)
        works: list[Work] = []
        mismatches: list[Mismatched] = []
        for batch in run.batches:
            entries, rows = self._known(batch)
            for response in batch.responses:
                if response.error and not response.fails(self._rank):
                    continue
                entry = self._answered(response)
                if response.error:
                    mismatches.append(Mismatched(entry, response.error))
                    continue
                if response.bit >= 0:
                    request = entry.request
                    self.cache.remember(response.bit, request if request.cacheable else signed(request), response.rows)
                entry.is_blank = response.is_blank
                entries.append(entry)
                rows.append(response.rows)
            if entries:
                self.batches += 1
                if is_last_of_a_while(self.batches):
                    self.cache.know_unnamed()
                    self.signed_in_vain = 0
                works.append(Work(entries, rows, self.batches + self.calls))
        if isinstance(decision, Common) and decision.carried_bits:
            works[0].is_carried = True
        if self._adopted is not None and self._adopted[0] not in self.by_bit:  # a done handle is not kept
            self._adopted = None
        return works, mismatches

    def _known(self, batch: Batch) -> tuple[list[Entry], list[Rows]]:
        """Returns the entries of the bits of ``batch``, and the rows of each."""
        if not batch.bits:
            return [], []
        bits = members(batch.bits)
        submitted, known = self.by_bit, self.cache.definitions
        has_joined = JOIN_NAME in self._by_name
        try:
            for bit in bits if has_joined else ():
                if bit not in submitted:
                    submitted[bit] = of_joined(known[bit].request)
            return list(map(submitted.pop, bits)), known.rows_of(bits)
        except KeyError as error:
            raise ProtocolError(f"rank 0 runs the tensor of bit {error}, which this rank did not submit") from None

    def _settle_blank(self, run: Run) -> None:
        settled = self._blank_bits & run.bits
        self._blank_bits ^= settled
        if filled := settled & ~run.blank_bits:  # by other ranks
            for bit in members(filled):
                if bit in self.by_bit:
                    self.by_bit[bit].is_blank = False

    def _answered(self, response: Response) -> Entry:
        name = response.name
        entry = self._by_name.pop(name, None) or self.by_bit.pop(self.cache.bit_of_name(name), None)
        if entry is None:
            if response.request is None:
                raise ProtocolError(f"rank 0 answered {name!r}, which this rank did not submit")
            entry = of_joined(response.request)
        return entry

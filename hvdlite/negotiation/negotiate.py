"""The root's decisions: which tensors are ready on every rank, and in which batches they run.

Ranks submit in any order; the root answers in one order for all. Ranks submit a tensor that they remember as a bit, and
the bits that all ranks have set are ready. They request any other tensor by name: one that is new, or that a rank
describes differently than before. Once every rank has requested the name, the root compares the requests, and answers
with an error for all ranks or with a definition and a bit. If one rank submits the bit of a tensor and another rank
requests its name, the bit becomes *stale*: until the root answers the name, it reads the bit as the request that the
bit stands for.

A rank that has *joined* has no more data. Until all ranks have joined, no tensor waits for it, and a tensor that can
run without its data runs. A message from one rank to another (SEND) waits for these two ranks only; all ranks run it,
but the others move nothing.

A rank submits a group, which is a list of tensors, in one message. So once every rank has submitted one tensor of a
group, no rank will submit further tensors of it. If the lengths of the group differ, the root answers all its tensors
with an error.

A tensor is *blank* if no rank has a value for it. Each rank reports the tensors for which it has none; joined ranks
have no values.

The ranks of a group may have a page (`hvdlite.control.page`). While it is *open*, they agree there on the tensors that
have a bit below ``page_names``, without the root. The root must not answer such a name while some rank has submitted
its bit in the page. So it closes the page when a rank joins, when one rank submits a bit and another one requests the
name, and before a new generation. The bits of tensors without a name (`hvdlite.negotiation.unnamed`) are for calls in
the page only: at a closing ranks request such tensors. So the root also closes the page when one rank has requested a
tensor without a name and another one has submitted such a bit there, and when it takes over a call of its own rank that
waits with such a bit: perhaps the ranks make different calls.

Once all ranks have closed the page (`hvdlite.negotiation.gate`), the root decides alone until it opens the page with a
run. After that run the ranks submit their unanswered bits again, in the page; the root forgets those bits, and ignores
bits from before.

Invariants:

- A name is in flight at most once on each rank. So when a bit changes its meaning, no rank sends the bit before it has
  received the change.
- A rank in ``_requested[name]`` has no bit set for that name.
- ``_ready`` never has a bit set on all ranks that have not joined.
- ``_filled`` has the ready or agreed bits for which some rank has a value. ``_blank`` has for each requested name the
  number of ranks that requested it without a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_, or_

from hvdlite.members.ranges import shortened
from hvdlite.negotiation.agree import differ_in_length, disagreement, is_well_formed
from hvdlite.negotiation.bits import members, membership
from hvdlite.negotiation.cache import Definition, Definitions, fuse_key, runs_with_joined_ranks
from hvdlite.negotiation.delays.circle import Wait
from hvdlite.negotiation.fuse import Agreed, fuse
from hvdlite.negotiation.gate import Gate
from hvdlite.negotiation.kinds import KINDS
from hvdlite.negotiation.messages import JOIN_NAME, Batch, Kind, Ready, Request, Response, Run, Tuning
from hvdlite.negotiation.unnamed import may_be_signed, signed
from hvdlite.negotiation.wire import ProtocolError
from hvdlite.tensors.device import CPU

_SIGNED_SHARE = 16  # of the cache: tensors without a name may have any number of shapes, and leave room for others


class Negotiator:
    """The root's state for a group: `receive` takes messages, and `cut` returns decisions.

    Ranks are group indices; ``ranks`` has their numbers in the job, for texts for users. ``bits_cut`` has the bits of
    the latest run, including the bits that ranks remember from this run on; ``signed`` has those of tensors without a
    name. Any thread may assign ``tuning``: it applies from the next run on, which sends it to all ranks.
    """

    def __init__(self, ranks: Sequence[int], cache_capacity: int, tuning: Tuning, page_names: int = 0) -> None:
        self._ranks = ranks
        self._size = size = len(ranks)
        self._capacity = cache_capacity
        self.tuning = tuning
        self._sent_tuning: Tuning | None = None
        self._generation = 0
        self._definitions = Definitions(cache_capacity)
        self._retired: dict[int, Definitions] = {}
        self._seen_generation = [0] * size
        self._ready = [0] * size
        self._filled = 0
        self._blank: Counter[str] = Counter()
        self._stale = 0
        self.signed = 0
        self._sign_below = page_names if size > 1 else cache_capacity
        self._doubts = False
        self._unnamed: set[str] = set()  # requested names of tensors that may be signed
        self._requested: dict[str, dict[int, Request]] = {}
        self._joined: list[int] = []
        self._runs_cut = 0
        self.bits_cut = 0
        self._agreed_bits = 0
        self._agreed: list[Agreed] = []
        self._errors: list[Response] = []
        self._unequal: dict[str, str] = {}
        self._is_full = False
        self._was_last = False
        self._gate = Gate(range(size), page_names)

    @property
    def has_stale(self) -> bool:
        """True if some rank has requested a tensor that other ranks may submit as a bit."""
        return bool(self._stale or (self._unnamed and self.signed))

    def must_close(self, submitted: Callable[[], int]) -> bool:
        """True if the page is open and must be closed. ``submitted`` returns the bits that ranks submitted there."""
        gate = self._gate
        if not gate.is_open:
            return False
        if gate.must_close or self._is_full or self.tuning.hold_s:
            return True
        if stale := self._stale | (self.signed if self._unnamed or self._doubts else 0):
            gate.must_close = bool(stale & submitted())
        self._doubts = False
        return gate.must_close

    def doubt(self) -> None:
        """Closes the page if a call without a name still waits, perhaps for ranks that make another call."""
        self._doubts = True

    @property
    def _may_open(self) -> bool:
        is_closed = bool(self._gate.in_page) and self._gate.is_closed
        return is_closed and not (self._joined or self.has_stale or self._is_full or self.tuning.hold_s)

    @property
    def has_agreed(self) -> bool:
        """True if `cut` has something to return."""
        gate = self._gate
        if gate.in_page:
            if not gate.is_closed and (not gate.is_open or gate.must_close or self._is_full):
                return False
            is_tuned = self._sent_tuning is not None and self.tuning is not self._sent_tuning
            if self._may_open or is_tuned:
                return True
        return bool(self._agreed_bits or self._agreed or self._errors)

    @property
    def is_waiting(self) -> bool:
        """True if some ranks submitted a tensor that others did not."""
        return bool(self._requested) or any(self._ready)

    def receive(self, rank: int, ready: Ready) -> bool:
        """Takes a message of ``rank``. True if ``rank`` was the last one to submit some tensor.

        Raises ProtocolError if no correct rank sends it.
        """
        self._was_last = False
        gate = self._gate
        for sender, message in gate.admit(rank, ready):
            self._read(sender, message)
        if self._unequal:
            if gate.is_closed:
                self._answer_unequal_groups()
            else:
                gate.must_close = True
        return self._was_last

    def _read(self, rank: int, ready: Ready) -> None:
        if bits := ready.bits:
            if ready.generation != self._generation:
                self._receive_retired(rank, ready)
            elif bits >> len(self._definitions):
                raise ProtocolError(f"rank {self._ranks[rank]} named a tensor that was never agreed")
            else:
                bits = self._gate.bits_of(ready)
                self._receive_bits(rank, bits, ready.blank_bits & bits)
        for index, request in enumerate(ready.requests):
            if not is_well_formed(request, rank, self._size):
                raise ProtocolError(f"rank {self._ranks[rank]} sent an invalid request for {request.name!r}")
            self._add_request(rank, request, ready.blank_requests >> index & 1)
        self._seen_generation[rank] = ready.generation

    def cut(self) -> Run:
        """Returns batches of everything that is agreed; call it if `has_agreed`. The caller sends all runs in order."""
        tuning = self.tuning  # another thread may assign it meanwhile
        batches = [Batch(0, tuple(self._errors))] if self._errors else []
        batches += fuse(self._agreed_bits, self._definitions, self._agreed, tuning.fusion_threshold)
        run = Run(self._generation, tuple(batches), self._agreed_bits & ~self._filled)
        if tuning is not self._sent_tuning:
            self._sent_tuning = run.tuning = tuning
        self._filled &= ~self._agreed_bits
        self.bits_cut = run.bits if self._agreed or self._errors else self._agreed_bits
        self._runs_cut += 1
        self._agreed_bits = 0
        self._agreed = []
        self._errors = []
        if self._may_open:
            run.opens = True
            self._open()
        if self._is_full:
            self._start_generation()
        return run

    def _open(self) -> None:
        self._gate.open(self._generation)
        self._ready = [ready & ~self._gate.in_page for ready in self._ready]
        self._filled &= ~self._gate.in_page

    def bit_of(self, name: str) -> int:
        """Returns the bit of ``name``, or -1."""
        return self._definitions.bit_of(name)

    def waiting(self, in_page: Sequence[int] = ()) -> dict[str, Wait]:
        """Returns the names that only some ranks submitted, each with the ranks that did and that did not.

        ``in_page`` has for each rank the bits that it has submitted in the page.
        A join waits as long as other ranks have work, so its name changes with every run and never seems to stall.
        """
        missing = {}
        for name, requested in self._requested.items():
            shown = f"{JOIN_NAME} after {self._runs_cut} runs" if name == JOIN_NAME else name
            absent = [rank for rank in self._absent(requested) if rank not in self._joined]
            missing[shown] = Wait(self._numbers_of(absent), self._numbers_of(sorted(requested)))
        all_ready = list(map(or_, self._ready, in_page)) if in_page else self._ready
        submitted = reduce(or_, all_ready)
        waits: dict[bytes, Wait] = {}  # many tensors wait for the same ranks
        bits = members(submitted) if submitted else []
        for bit, ready in zip(bits, membership(all_ready, bits), strict=True):
            if ready not in waits:
                absent = [rank for rank in self._live() if not ready[rank]]
                present = [rank for rank, is_ready in enumerate(ready) if is_ready]
                waits[ready] = Wait(self._numbers_of(absent), self._numbers_of(present))
            missing[self._definitions[bit].request.name] = waits[ready]
        return missing

    def _receive_bits(self, rank: int, bits: int, blank_bits: int) -> None:
        if changed := bits & self._stale:
            bits ^= changed
            for bit in members(changed):
                self._add_request(rank, self._definitions[bit].of_rank(rank), blank_bits >> bit & 1)
        self._ready[rank] |= bits
        self._filled |= bits & ~blank_bits
        if self._joined:
            self._agree_without_joined()
        elif common := reduce(and_, self._ready):
            self._agreed_bits |= common
            self._ready = [ready ^ common for ready in self._ready]
            self._was_last = True

    def _receive_retired(self, rank: int, ready: Ready) -> None:
        table = self._retired.get(ready.generation)
        if table is None or ready.bits >> len(table):
            raise ProtocolError(
                f"rank {self._ranks[rank]} named a tensor of generation {ready.generation}, which is forgotten"
            )
        for bit in members(ready.bits):
            self._add_request(rank, table[bit].of_rank(rank), ready.blank_bits >> bit & 1)

    def _add_request(self, rank: int, request: Request, is_blank: int) -> None:
        bit = self._definitions.bit_of(request.name)
        if bit >= 0 and not self._stale >> bit & 1:
            self._make_stale(bit)
        requested = self._requested.setdefault(request.name, {})
        if rank in requested:
            raise ProtocolError(f"rank {self._ranks[rank]} submitted {request.name!r} twice")
        requested[rank] = request
        if not request.cacheable and may_be_signed(request):
            self._unnamed.add(request.name)
        if is_blank:
            self._blank[request.name] += 1
        if request.kind is Kind.JOIN:
            self._join(rank)
        else:
            self._answer_if_complete(request.name, requested)

    def _make_stale(self, bit: int) -> None:
        self._stale |= 1 << bit
        definition = self._definitions[bit]
        requested = self._requested.setdefault(definition.request.name, {})
        for rank in range(self._size):
            if self._ready[rank] >> bit & 1:
                self._ready[rank] ^= 1 << bit
                requested[rank] = definition.of_rank(rank)
        if self._filled >> bit & 1:
            self._filled ^= 1 << bit
        elif requested:
            self._blank[definition.request.name] = len(requested)

    def _answer_if_complete(self, name: str, requested: dict[int, Request]) -> None:
        needed = 2 if KINDS[next(iter(requested.values())).kind].has_peer else self._size
        if len(requested) >= needed - len(self._joined):
            absent = self._absent(requested)
            if not absent or (self._joined and set(absent) <= set(self._joined)):
                self._forget(name)
                self._answer([requested[rank] for rank in sorted(requested)], sorted(requested), absent)

    def _forget(self, name: str) -> None:
        del self._requested[name]
        self._unnamed.discard(name)

    def _answer(self, requests: list[Request], ranks: list[int], absent: list[int]) -> None:
        """Answers one name with ``requests`` of ``ranks``. The ranks in ``absent`` have joined."""
        first = requests[0]
        is_blank = self._blank.pop(first.name, 0) == len(requests)
        bit = self._definitions.bit_of(first.name)
        if bit >= 0:
            self._stale ^= 1 << bit
        if len(requests) == self._size:
            for_joined = None
            self._was_last = True
        else:
            for_joined = first  # joined ranks did not submit it
        error = disagreement(requests, self._numbers_of(ranks), self._ranks)
        if not error and absent and not runs_with_joined_ranks(fuse_key(first)):
            error = self._joined_error(first, absent)
        if error:
            submitters = () if for_joined is None else tuple(ranks)
            self._errors.append(Response(first.name, error, submitters, bit, for_joined))
            if differ_in_length(requests):
                self._unequal.update((each.group_name, error) for each in requests if each.group_length)
            return
        definition = Definition(first, KINDS[first.kind].extents.agreed(requests))
        if not any(request.cacheable for request in requests):
            bit = -1 if absent else self._sign(definition)
        elif not all(request.cacheable for request in requests):
            bit = -1
        elif bit >= 0:
            self._definitions.set(bit, definition)
        elif not self._definitions.is_full:
            bit = self._definitions.add(definition)
        else:
            self._is_full = self._capacity > 0
        self._agreed.append(Agreed(Response(first.name, "", definition.rows, bit, for_joined, is_blank), definition))

    def _sign(self, definition: Definition) -> int:
        """Returns the bit under which ranks remember a tensor without a name from now on, or -1."""
        known = self._definitions
        if (
            definition.rows
            or not may_be_signed(definition.request)
            or definition.request.device.kind != CPU.kind
            or known.is_full
            or len(known) >= self._sign_below
            or self.signed.bit_count() >= self._capacity // _SIGNED_SHARE
        ):
            return -1
        request = signed(definition.request)
        if known.bit_of(request.name) >= 0:
            return -1
        bit = known.add(definition._replace(request=request))
        self.signed |= 1 << bit
        return bit

    def _answer_unequal_groups(self) -> None:
        """Answers all waiting tensors of groups whose lengths differ: some of them would wait for ever."""
        unequal, self._unequal = self._unequal, {}
        submitted = reduce(or_, self._ready)
        for bit in members(submitted) if submitted else ():
            request = self._definitions[bit].request
            if request.group_length and request.group_name in unequal:
                self._make_stale(bit)
        for name, requested in list(self._requested.items()):
            for request in requested.values():
                if request.group_length and request.group_name in unequal:
                    self._forget(name)
                    self._blank.pop(name, None)
                    if (bit := self._definitions.bit_of(name)) >= 0:
                        self._stale ^= 1 << bit
                    self._errors.append(Response(name, unequal[request.group_name], tuple(requested), bit, request))
                    break

    # ---- ranks that have joined

    def _join(self, rank: int) -> None:
        self._joined.append(rank)
        self._agree_without_joined()
        for name, requested in list(self._requested.items()):
            if name != JOIN_NAME:
                self._answer_if_complete(name, requested)
        if len(self._joined) == self._size:
            request = self._requested.pop(JOIN_NAME)[rank]
            response = Response(JOIN_NAME, "", (self._ranks[rank],), -1)
            self._agreed.append(Agreed(response, Definition(request, ())))  # last, so that it runs after the rest
            self._joined = []

    def _agree_without_joined(self) -> None:
        live = self._live()
        common = reduce(and_, (self._ready[rank] for rank in live)) if live else reduce(or_, self._ready)
        if not common:
            return
        with_all = reduce(and_, self._ready)
        before, self._ready = self._ready, [ready & ~common for ready in self._ready]
        for key, known in self._definitions.classes.items():
            impossible = 0 if runs_with_joined_ranks(key) else known.bits & common & ~with_all
            common ^= impossible
            self._filled &= ~impossible
            for bit in members(impossible) if impossible else ():
                request = self._definitions[bit].request
                error = self._joined_error(request, self._joined)
                ranks = tuple(rank for rank, ready in enumerate(before) if ready >> bit & 1)
                self._errors.append(Response(request.name, error, ranks, bit, request))
        self._agreed_bits |= common

    def _joined_error(self, request: Request, absent: Sequence[int]) -> str:
        joined = shortened(self._numbers_of(absent))
        gathers = request.kind is Kind.ALLGATHER
        return (
            f"{request.kind} of tensor {request.name!r} cannot run because rank(s) {joined} have joined and have no "
            "more data; until all ranks have joined, only allreduce with op Average or Sum runs"
            + ("; a sparse gradient is gathered unless the optimizer has sparse_as_dense=True" if gathers else "")
        )

    def _live(self) -> list[int]:
        return [rank for rank in range(self._size) if rank not in self._joined]

    def _absent(self, requested: dict[int, Request]) -> list[int]:
        """Returns the ranks whose request for a name is missing, including ranks that have joined."""
        first = next(iter(requested.values()))
        takes_part = (first.root, first.peer) if KINDS[first.kind].has_peer else range(self._size)
        return [rank for rank in takes_part if rank not in requested]

    def _numbers_of(self, ranks: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._ranks[rank] for rank in ranks)

    def _start_generation(self) -> None:
        self._is_full = False
        oldest = min(self._seen_generation)
        self._retired = {number: table for number, table in self._retired.items() if number >= oldest}
        self._retired[self._generation] = table = self._definitions
        self._generation += 1
        self._definitions = Definitions(self._capacity)
        self._stale = self.signed = 0
        waiting, self._ready = self._ready, [0] * self._size
        filled, self._filled = self._filled, 0
        for rank, bits in enumerate(waiting):
            for bit in members(bits) if bits else ():
                self._add_request(rank, table[bit].of_rank(rank), not filled >> bit & 1)

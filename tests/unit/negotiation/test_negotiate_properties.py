"""Random programs: whatever the order, the timing and the cache's size, all ranks run the same batches, once each."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hvdlite.negotiation.messages import Kind, Request
from tests.unit.replicas import Ranks, request

NAMES = "abcdef"


def _draw_request(data: st.DataObject, name: str, is_gather: bool) -> Request:
    rows = data.draw(st.integers(0, 2))
    if is_gather:
        return request(name, kind=Kind.ALLGATHER, shape=(rows, 2))
    return request(name)


@settings(max_examples=60)
@given(st.data())
def test_ranks_never_differ(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 4))
    ranks = Ranks(size, data.draw(st.integers(0, 4)), data.draw(st.sampled_from([0, 24, 1 << 20])))
    for _ in range(data.draw(st.integers(1, 5))):
        names = data.draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
        gathers = {name: data.draw(st.booleans()) for name in names}
        todo = [
            [_draw_request(data, name, gathers[name]) for name in data.draw(st.permutations(names))]
            for _ in range(size)
        ]
        while any(todo) or any(leaf.up or leaf.down or leaf.in_flight for leaf in ranks.leaves):
            _one_move(data, ranks, todo)
    assert all(leaf.ran == ranks.leaves[0].ran for leaf in ranks.leaves)
    assert not any(leaf.errors for leaf in ranks.leaves)
    assert not ranks.negotiator.is_waiting


def _one_move(data: st.DataObject, ranks: Ranks, todo: list[list[Request]]) -> None:
    moves = [("submit", rank) for rank, items in enumerate(todo) if items and _is_free(ranks, rank, items[0])]
    moves += [("up", rank) for rank, leaf in enumerate(ranks.leaves) if leaf.up]
    moves += [("down", rank) for rank, leaf in enumerate(ranks.leaves) if leaf.down]
    moves += [("cut", 0)] if ranks.negotiator.has_agreed else []
    move, rank = data.draw(st.sampled_from(moves))
    if move == "submit":
        burst = data.draw(st.integers(1, 2))
        chosen = [item for item in todo[rank][:burst] if _is_free(ranks, rank, item)]
        ranks.leaves[rank].submit(*chosen)
        todo[rank] = [item for item in todo[rank] if item not in chosen]
    elif move == "up":
        ranks.send_up(rank)
    elif move == "down":
        ranks.leaves[rank].take()
    else:
        ranks.cut()


def _is_free(ranks: Ranks, rank: int, item: Request) -> bool:
    return item.name not in ranks.leaves[rank].in_flight

"""The properties of messages."""

from __future__ import annotations

from hvdlite.negotiation.messages import Batch, Response, Run


def test_a_run_has_the_bits_of_what_is_known_and_of_what_is_known_from_now_on() -> None:
    first, later, never = Response("a", "", (), 0), Response("b", "", (), 5), Response("c", "", (), -1)
    assert Run(1, (Batch(0, (first,)),)).bits == 0b1  # the first tensor of all has bit 0
    assert Run(1, (Batch(0b110, (first, never)), Batch(0b1000, (later,)))).bits == 0b101111
    assert Run(1, (Batch(0, (never,)),)).bits == 0

"""An attacker on the path: bytes that can be read, and replays."""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import suppress

import numpy as np
import psutil
import pytest

import hvdlite as hvd
from tests.harness import ProcessRanks, pause_at
from tests.harness.patience import PATIENCE_S
from tests.security.sniffer import Capture, capture
from tests.security.victim import MARK, SIZE, TWO_HOSTS, is_dropped, victim

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="capturing packets needs root")

READS_FOR_S = 1.0
NAME = "a name that stands out"


def shows_tensors(seen: Capture) -> bool:
    """Returns true if a piece of a tensor or of a sum was seen, too long for a coincidence."""
    own = [MARK + rank for rank in range(SIZE)]
    sums = [*own, own[0] + own[1], own[2] + own[3], sum(own)]
    return any(struct.pack("<f", each) * 16 in seen for each in sums)


def read_along(**environ: str) -> tuple[Capture, list[bytes]]:
    with victim(**environ) as job:
        with capture() as seen:
            threading.Event().wait(READS_FOR_S)
        seen.keep({port for _, port in job.tcp_listeners()})
        keys = [job.secret().encode(), bytes.fromhex(job.secret())]
        job.end()
    return seen, keys


def test_with_encrypted_data_nothing_can_be_read() -> None:
    seen, keys = read_along(HVDLITE_ENCRYPT_DATA="1")
    assert sum(map(len, seen.streams().values())) > 1 << 20
    assert not shows_tensors(seen)
    assert not [key for key in keys if key in seen]


def test_without_it_tensors_can_be_read_and_keys_cannot() -> None:
    seen, keys = read_along()
    assert shows_tensors(seen)  # so the test above looks in the right place
    assert not [key for key in keys if key in seen]


def meet_and_reduce() -> float:
    pause_at("before")
    hvd.init()
    for _ in range(3):
        result = hvd.allreduce(np.full(1000, 1.0), name=NAME, op=hvd.Sum)
    pause_at("running")
    result = hvd.allreduce(np.full(1000, 1.0), name=NAME, op=hvd.Sum)
    return float(result.sum())


def test_a_recorded_connection_is_worth_nothing_a_second_time() -> None:
    with ProcessRanks(4, meet_and_reduce, environ_by_rank=TWO_HOSTS) as ranks:
        ranks.wait_for("before")
        with capture() as seen:
            ranks.release()
            ranks.wait_for("running")
        assert NAME.encode() not in seen  # what is said about tensors is always encrypted
        listeners = {
            tuple(c.laddr)
            for rank in range(4)
            for c in psutil.Process(ranks.pid(rank)).net_connections("tcp")
            if c.status == psutil.CONN_LISTEN
        }
        recorded = [(flow.target, stream) for flow, stream in seen.streams().items() if flow.target in listeners]
        assert recorded
        for address, stream in recorded:
            with socket.create_connection(address, timeout=PATIENCE_S) as replay:
                with suppress(ConnectionError):
                    replay.sendall(stream[: 1 << 20])
                assert is_dropped(replay, within_s=PATIENCE_S)
        ranks.release()
        outcomes = ranks.join()
    for outcome in outcomes:
        assert (outcome.exit_code, outcome.value) == (0, 4000.0), outcome.output

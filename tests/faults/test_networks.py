"""The addresses on which ranks listen, and the bytes of a job that others on the network can see."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.faults.training import training
from tests.harness import faults
from tests.harness.hosts import Network
from tests.harness.patience import PATIENCE_S
from tests.hosts.jobs import hvdrun

SNIFFER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("sniffer.py")))
OF_A_TENSOR = np.arange(10, 26, dtype=np.float32).tobytes()  # rank 0 has such a row in each step


@pytest.mark.parametrize("is_encrypted", [False, pytest.param(True, marks=pytest.mark.faults)])
def test_who_reads_along_sees_no_key_and_tensors_only_if_they_are_not_encrypted(
    network: Network, tmp_path: Path, is_encrypted: bool
) -> None:
    capture = tmp_path / "capture"
    options = ("--encrypt-data",) if is_encrypted else ()
    with network["b"].popen(*SNIFFER, "eth0", str(capture)) as sniffer:
        assert sniffer.stdout is not None
        assert sniffer.stdout.readline() == b"ready\n"
        with training(network, "a:1,b:1", length=8 << 10, options=options) as job:
            key = job.rank(1).environ()["HVDLITE_SECRET"]
            job.wait_for_steps(100)
            assert job.finish().code == 0
        sniffer.terminate()
        assert sniffer.wait(PATIENCE_S) == 0
    seen = capture.read_bytes()
    assert len(seen) > 100 * 8 << 10
    assert key.encode() not in seen
    assert bytes.fromhex(key) not in seen
    assert (OF_A_TENSOR in seen) == (not is_encrypted)


def test_ranks_listen_on_the_address_of_their_host_only(network: Network) -> None:
    with training(network) as job:
        for host in (network["a"], network["b"]):
            listeners = {line.split()[3] for line in host.check("ss", "-Hltn").splitlines()}
            others = listeners - {"0.0.0.0:22", "[::]:22"}
            assert others
            assert {listener.rpartition(":")[0] for listener in others} == {host.address}
        job.finish()


@pytest.mark.faults
def test_ranks_listen_on_free_ports_of_the_range(network: Network) -> None:
    with (
        faults.occupy(network["a"], range(40000, 40010)),
        training(network, "a:1,b:1", options=("--port-range", "40000-40020")) as job,
    ):
        for host, first in ((network["a"], 40010), (network["b"], 40000)):
            ports = {int(line.split()[3].rpartition(":")[2]) for line in host.check("ss", "-Hltn").splitlines()}
            mine = ports - {22, *range(40000, first)}
            assert mine
            assert mine <= set(range(first, 40021))
        assert job.finish().code == 0


@pytest.mark.faults
def test_a_range_without_a_free_port_is_an_error_that_names_it(network: Network) -> None:
    command = ("-H", "a:1,b:1", "--port-range", "40000-40009", sys.executable, "-c", "import hvdlite as h; h.init()")
    with faults.occupy(network["a"], range(40000, 40010)), faults.occupy(network["b"], range(40000, 40010)):
        ended = hvdrun(network["a"], *command)
    assert ended.returncode == 1
    assert "40000-40009" in ended.stderr

"""``make bench-hosts``: the data plane across two hosts, which are namespaces of this machine joined by veth pairs.

Prints a table: what was measured, the figure, and what it should be. What is compared runs in turns, because a
machine's speed drifts. The hosts need root; they end with this process, however it ends.

An all-reduce of b bytes has to move b over a link between two hosts, in each direction. A link "of 1 Gbit/s" is shaped
by tbf in both directions. tbf counts whole Ethernet frames, so with an MTU of 1500 the payload of a full link is 1448
of each 1514 bytes, and with one of 9000 it is 8948 of 9014: that is the *room*.

Where each connection is limited, htb has 32 classes of 250 Mbit/s each, and bits 1 to 5 of the sender's port choose one
(bit 0 is the same for all that a host dials). The ports of a ring's four connections differ by 2 to 48, so each of them
has a class of its own. Acknowledgements have another one, as they would not wait behind the payload of others either.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from subprocess import CompletedProcess
from typing import Any

from tests.harness.hosts import Host, Network, missing

_HVDRUN = (sys.executable, "-m", "hvdlite.launcher.cli")
_BENCH = (sys.executable, "-m", "hvdlite.bench")
_RINGS = (sys.executable, "-m", "tests.bench.rings")
_CROSSING = (sys.executable, "-m", "tests.bench.crossing")
_JOB_S = 90.0
_LINK_BITS = 1e9
_SHARED_CORES = {"OMP_NUM_THREADS": "1"}  # hvdrun would give each host's rank all cores, which are both hosts'
_MIB = 1 << 20
_TURNS = 2


def main() -> None:
    if reason := missing():
        sys.exit(f"make bench-hosts: {reason}")
    with Network("a", "b") as network:
        _show("what", "figure", "should be")
        _against_gloo(network)
        _of_safety(network, "unlimited link", 60)
        _of_connections(network, "unlimited link", 60)
        _of_hierarchy(network)
        for mtu in (1500, 9000):
            with _limited(network, mtu):
                _on_a_slow_link(network, mtu)
        with _limited(network, 1500):
            _of_safety(network, "1 Gbit/s", 10)
        with _each_limited(network):
            _of_connections(network, "250 Mbit/s for each connection", 5)


def _show(what: str, figure: str, target: str) -> None:
    print(f"{what:<62} {figure:>22}   {target}", flush=True)


# ---- the rows


def _against_gloo(network: Network) -> None:
    """Unlimited, one rank each."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows")
        _job(network, 1, *_BENCH, "--compare", "gloo", "--sizes", "1K,4M,16M,64M", "--json", str(file))
        rows = json.loads(file.read_text())
    times = {(row["system"], row["bytes"]): row["median_us"] for row in rows}
    for nbytes in sorted({row["bytes"] for row in rows}):
        taken, others = times["hvdlite", nbytes], times["gloo", nbytes]
        what = f"all-reduce of {nbytes >> 10} KiB, 1 + 1 ranks; Gloo: {others:.0f} us"
        if nbytes < _MIB:
            _show(what, f"{taken:.0f} us, {taken / others:.2f} of it", "<= 0.5 of its time")
        else:
            _show(what, f"{taken:.0f} us, {others / taken:.2f}x", ">= 1.5x")


def _of_safety(network: Network, link: str, iterations: int) -> None:
    """One rank each. On a fast link the processor is the limit, and nothing hides what it does more."""
    kinds = ("plain", "checked", "encrypted")
    found = _rings(network, 16 * _MIB, iterations, *kinds)
    plain, checked, encrypted = (found[kind] for kind in kinds)
    _show(f"cost of CRC32C, 16 MiB, 1 + 1 ranks, {link}", f"{checked / plain - 1:.1%}", "< 5 %")
    _show("cost of AES-128-GCM instead", f"{encrypted / plain - 1:.1%}", "")


def _of_connections(network: Network, link: str, iterations: int) -> None:
    """One rank each. They help where something limits each connection, and cost processor time anywhere else."""
    nbytes = 16 * _MIB
    one, *more = ("1", "2", "4")
    found = _rings(network, nbytes, iterations, one, *more)
    _show(f"all-reduce of 16 MiB, 1 + 1 ranks, {link}", f"{nbytes * 8 / found[one] / 1e6:.0f} Mbit/s", "")
    for ring in more:
        _show(f"the same over {ring} connections to each neighbour", f"{found[one] / found[ring]:.2f}x", "")


def _of_hierarchy(network: Network) -> None:
    """Two ranks each: bytes over the link, and the time against one ring of all ranks."""
    nbytes, planes = 64 * _MIB, ("hierarchical", "ring")
    found: dict[str, list[Mapping[str, float]]] = {plane: [] for plane in planes}
    for _ in range(_TURNS):
        for plane in planes:
            found[plane].append(_crossing(network, 2, nbytes, 5, HVDLITE_PLANE=plane))
    excess = median(each["sent"] for each in found["hierarchical"]) / nbytes - 1
    _show("bytes that leave a host, 64 MiB, 2 + 2 ranks, beyond theory", f"{excess:.2%}", "< 3 %")
    own, flat = (median(each["median_s"] for each in found[plane]) for plane in planes)
    _show("the same against a flat ring", f"{own * 1e3:.0f} ms, {flat / own:.2f}x", "> 1x")


def _on_a_slow_link(network: Network, mtu: int) -> None:
    nbytes = 64 * _MIB
    # Batches of a part of the gradients, so that some are converted while others are on their way.
    found = _crossing(network, 1, nbytes, 3, "--bf16", HVDLITE_FUSION_THRESHOLD=str(8 * _MIB))
    most = (mtu - 52) / (mtu + 14)
    share = nbytes * 8 / found["median_s"] / _LINK_BITS
    text = f"payload on 1 Gbit/s, 64 MiB, MTU {mtu} (room for {most:.1%})"
    _show(text, f"{share:.1%}, {share / most:.1%} of room", ">= 97 %")
    _show("Compression.bf16 there, in gradient bytes", f"{found['parts_s'] / found['bf16_s']:.2f}x", ">= 1.9x")


# ---- jobs


def _crossing(network: Network, ranks: int, nbytes: int, iterations: int, *switches: str, **environment: str) -> Any:
    ended = _job(network, ranks, *_CROSSING, str(nbytes), str(iterations), *switches, **environment)
    return _measured(ended)


def _rings(network: Network, nbytes: int, iterations: int, *rings: str) -> Any:
    return _measured(_job(network, 1, *_RINGS, str(nbytes), str(iterations), *rings))


def _measured(ended: CompletedProcess[str]) -> Any:
    """The JSON in the first line that a rank printed."""
    return json.loads(ended.stdout.splitlines()[0].partition("<stdout>:")[2])


def _job(network: Network, ranks: int, *command: str, **environment: str) -> CompletedProcess[str]:
    hosts = ",".join(f"{host.name}:{ranks}" for host in network)
    ended = network["a"].run(*_HVDRUN, "-H", hosts, *command, env={**_SHARED_CORES, **environment}, timeout_s=_JOB_S)
    if ended.returncode:
        sys.exit(f"make bench-hosts: {' '.join(command)} failed\n{ended.stdout}{ended.stderr}")
    return ended


@contextmanager
def _limited(network: Network, mtu: int) -> Iterator[None]:
    """Shapes what each host sends to 1 Gbit/s, in frames of this size."""
    shape = ("rate", "1gbit", "burst", "256kb", "limit", "3mb")
    for host in network:
        network.set_mtu(host.name, mtu)
        _tc(host, "add", "tbf", *shape)
    yield
    for host in network:
        _tc(host, "del")
        network.set_mtu(host.name, 1500)


@contextmanager
def _each_limited(network: Network) -> Iterator[None]:
    """Limits each connection of those that a host dials to 250 Mbit/s."""
    fast, shape = "rate 10gbit quantum 65536", "rate 250mbit burst 128kb quantum 65536"
    rules = [
        "qdisc add dev eth0 root handle 1: htb",
        f"class add dev eth0 parent 1: classid 1:1 htb {fast}",
        "filter add dev eth0 parent 1: protocol ip prio 1 u32 match u16 0 0xff80 at 2 flowid 1:1",  # below 128 bytes
    ]
    for number in range(32):
        flow = f"1:{100 + number}"
        rules += [
            f"class add dev eth0 parent 1: classid {flow} htb {shape}",
            f"filter add dev eth0 parent 1: protocol ip prio 2 u32 match ip sport {2 * number} 0x3e flowid {flow}",
        ]
    for host in network:
        host.check("sh", "-c", 'echo "$0" | tc -batch -', "\n".join(rules))
    yield
    for host in network:
        _tc(host, "del")


def _tc(host: Host, verb: str, *discipline: str) -> None:
    host.check("tc", "qdisc", verb, "dev", "eth0", "root", *discipline)


if __name__ == "__main__":
    main()

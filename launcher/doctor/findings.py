"""Rules that find what is wrong with surveyed hosts, or could be better, with advice. They read facts, nothing else.

A *problem* keeps a job from running; a *warning* makes it slow or may end it; a *note* is good to know. Hosts with the
same finding share it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from ..network.attempts import Attempt, HostsUnreached
from .survey import Survey, SurveyedHost

_GIB: Final = 1 << 30
_FEW_FILES: Final = 1024
_LITTLE_SHM: Final = 64 << 20  # what a container gets if nobody asks for more
_MUCH_SWAP: Final = 256 << 20
_CLOCK_S: Final = 1.0
_SLOW_PAIR: Final = 3.0  # times slower than the median pair
_GIGABIT_MB_PER_S: Final = 125.0
_FAR_US: Final = 1000.0


class Weight(IntEnum):
    """The severity of a finding, the most severe first."""

    PROBLEM = 0
    WARNING = 1
    NOTE = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """``text`` about ``hosts``, more lines of it, and what to do: ``advice``.

    Without hosts it is about all of them together, and an empty advice is part of the text.
    """

    weight: Weight
    hosts: tuple[str, ...]
    text: str
    advice: str
    details: tuple[str, ...] = ()


def find(survey: Survey, environment: Mapping[str, str]) -> list[Finding]:
    """All findings, the most severe first. ``environment`` is what ranks would get from this host's."""
    found = [*_of_network(survey)]
    for host in survey.hosts.values():
        found += [*_of_software(host), *_of_gpus(host), *_of_machine(host), *_of_threads(host, environment)]
    found += [*_of_pairs(survey.attempts), *_of_differences(survey)]
    return sorted(_merged(found), key=lambda finding: finding.weight)


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Merges findings with the same text, and their hosts."""
    by_text: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        key = (finding.text, finding.advice)
        known = by_text.get(key)
        by_text[key] = replace(known, hosts=known.hosts + finding.hosts) if known else finding
    return list(by_text.values())


def _of_software(host: SurveyedHost) -> Iterator[Finding]:
    def finding(text: str, advice: str, weight: Weight = Weight.PROBLEM) -> Finding:
        return Finding(weight, (host.name,), text, advice)

    if host.problem:
        yield finding(
            f"no rank can be started: {host.problem}",
            "a job must be able to log in there, and to find the same hvdlite and Python",
        )
    elif problem := host.software.get("problem"):
        yield finding(f"hvdlite does not work: {problem}", "install it again with the Python that runs there")
    elif not host.software.get("has_curve", True):
        yield finding("pyzmq was built without CURVE, which protects the job", "install pyzmq from PyPI")
    elif reason := host.software.get("without_native"):
        yield finding(
            f"ranks there have no native library, so the job would exchange through ZeroMQ, slowly: {reason}",
            "install hvdlite again there, from a wheel or with g++",
            Weight.WARNING,
        )


def _of_gpus(host: SurveyedHost) -> Iterator[Finding]:
    """Of GPUs that nvidia-smi lists, and what ranks need to use them."""
    if not host.machine.get("gpus"):
        return
    if reason := host.software.get("without_cuda"):
        text = f"ranks there cannot use its GPUs: {reason}"
        yield Finding(Weight.WARNING, (host.name,), text, "look at nvidia-smi and CUDA_VISIBLE_DEVICES there")
    elif reason := host.software.get("without_nccl"):
        text = f"tensors on GPUs would go through memory of the hosts, slowly: {reason.partition('; ')[0]}"
        advice = "install a PyTorch for CUDA there, or nvidia-nccl-cu12 or -cu13, whichever CUDA it has"
        yield Finding(Weight.WARNING, (host.name,), text, advice)


def _of_machine(host: SurveyedHost) -> Iterator[Finding]:
    def warning(text: str, advice: str) -> Finding:
        return Finding(Weight.WARNING, (host.name,), text, advice)

    def note(text: str, advice: str) -> Finding:
        return Finding(Weight.NOTE, (host.name,), text, advice)

    if not (facts := host.machine):
        return
    cores, limit = facts["cores"], facts["cores_limit"]
    if limit is not None and limit < cores:
        yield warning(
            f"its container may use {limit:g} cores' time, but sees {cores}",
            f"start {max(1, int(limit))} rank(s) there, or raise the limit; set OMP_NUM_THREADS to fit",
        )
    if facts["load"] > cores:
        yield warning(
            f"it is busy: load {facts['load']:.1f} on {cores} core(s)",
            "see with top what runs there; every rank waits for the slowest one",
        )
    if facts["free_memory"] < min(_GIB, facts["memory"] // 10):
        yield warning(
            f"only {facts['free_memory'] >> 20} MiB of memory are free", "stop the processes that use it, see top"
        )
    elif facts["used_swap"] > _MUCH_SWAP and facts["free_memory"] < facts["memory"] // 4:
        yield warning(
            f"it has swapped out {facts['used_swap'] >> 20} MiB", "stop the processes that use the memory, see top"
        )
    if facts["files"] is not None and facts["files"] < _FEW_FILES:
        yield warning(
            f"a process may open only {facts['files']} files; ranks need some for every peer and data loader",
            "raise the limit: ulimit -n 65536, or nofile in /etc/security/limits.conf",
        )
    if facts["infiniband"] and facts["gpus"] and facts["locked_memory"] is not None:
        yield warning(
            f"only {facts['locked_memory'] >> 10} KiB of memory may be locked, and NCCL over InfiniBand locks more",
            "raise the limit: ulimit -l unlimited, or memlock in /etc/security/limits.conf",
        )
    if facts["memory_limit"] is not None and facts["memory_limit"] < facts["memory"]:
        usable, there = facts["memory_limit"] / _GIB, facts["memory"] / _GIB
        yield note(
            f"its container may use {usable:.1f} of its {there:.1f} GiB of memory",
            "count all ranks and their data loaders against that, or raise the limit",
        )
    if facts["shm"] <= _LITTLE_SHM:
        yield note(
            f"/dev/shm has {facts['shm'] >> 20} MiB: enough for hvdlite, too little for data loaders with workers",
            "give the container more, as docker's --shm-size=8g does",
        )
    if abs(host.clock_ahead_s) > _CLOCK_S:
        direction = "ahead of" if host.clock_ahead_s > 0 else "behind"
        yield note(
            f"its clock is {abs(host.clock_ahead_s):.1f} s {direction} this host's",
            "run an NTP client there; hvdlite does not mind, but the times in logs do not match",
        )


def _of_threads(host: SurveyedHost, environment: Mapping[str, str]) -> Iterator[Finding]:
    threads = environment.get("OMP_NUM_THREADS", "")
    if host.machine and threads.isdecimal() and int(threads) > host.machine["cores"]:
        yield Finding(
            Weight.WARNING,
            (host.name,),
            f"OMP_NUM_THREADS={threads} is more than its {host.machine['cores']} core(s)",
            "unset it: hvdrun shares the cores out among the ranks of a host",
        )


def _of_network(survey: Survey) -> Iterator[Finding]:
    problem = survey.network_problem
    if isinstance(problem, HostsUnreached):
        yield Finding(Weight.PROBLEM, (), str(problem), " ".join(problem.advice), tuple(problem.details))
    elif problem is not None:
        yield Finding(
            Weight.PROBLEM, (problem.host,), problem.reason, "name an interface that it has with --network-interface"
        )


def _of_pairs(attempts: Iterable[Attempt]) -> Iterator[Finding]:
    measured = [one for one in attempts if one.mb_per_s is not None and one.rtt_us is not None]
    for one in attempts:
        if one.problem:
            text = f"{one.dialler} did not reach {one.candidate.host} at {one.candidate} again: {one.reason}"
            yield Finding(Weight.WARNING, (), text, "look for errors of its cable, switch or driver: ip -s link")
    if not measured:
        return
    median = statistics.median(one.mb_per_s or 0.0 for one in measured)
    slow = [one for one in measured if (one.mb_per_s or 0.0) * _SLOW_PAIR < median]
    for one in slow:
        text = f"{one.dialler} sends {one.mb_per_s:.0f} MB/s to {one.candidate.host}, and the median pair {median:.0f}"
        yield Finding(Weight.WARNING, (), text, "see whether that link is slower, busy or broken: ethtool, ip -s link")
    if median <= _GIGABIT_MB_PER_S:
        yield Finding(
            Weight.NOTE,
            (),
            f"the network carries {median:.0f} MB/s between two hosts, no more than Gigabit Ethernet does",
            "name a faster interface with --network-interface if there is one, or compress gradients to 16 bits",
        )
    if (latency := statistics.median(one.rtt_us or 0.0 for one in measured)) > _FAR_US:
        yield Finding(
            Weight.NOTE,
            (),
            f"a round trip between two hosts takes {latency / 1000:.1f} ms, as between distant or virtual hosts",
            "place the hosts closer to each other; small tensors wait for several round trips",
        )


def _of_differences(survey: Survey) -> Iterator[Finding]:
    hosts = [host for host in survey.hosts.values() if host.machine and host.software]
    frameworks = dict.fromkeys(name for host in hosts for name in host.software.get("frameworks", {}))
    for name in frameworks:
        versions = {host.name: host.software.get("frameworks", {}).get(name, "none") for host in hosts}
        if len(set(versions.values())) > 1:
            yield Finding(Weight.WARNING, (), f"hosts differ in {name}: {_shown(versions)}", "install one version")
    nccls = {host.name: found for host in hosts if host.machine["gpus"] and (found := host.software.get("nccl"))}
    if len(set(nccls.values())) > 1:
        advice = "install one version: NCCL refuses ranks with another, and hvdlite then refuses their tensors on GPUs"
        yield Finding(Weight.WARNING, (), f"hosts differ in NCCL: {_shown(nccls)}", advice)
    gpus = {host.name: str(len(host.machine["gpus"])) for host in hosts}
    if len(set(gpus.values())) > 1:
        yield Finding(Weight.WARNING, (), f"hosts differ in GPUs: {_shown(gpus)}", "give each as many slots as GPUs")
    mtus = {host.name: str(host.address.mtu) for host in hosts if host.address}
    if len(set(mtus.values())) > 1:
        advice = "set one with ip link set dev ... mtu ...; large packets may vanish where it changes"
        yield Finding(Weight.WARNING, (), f"hosts differ in MTU: {_shown(mtus)}", advice)
    cores = {host.name: str(host.machine["cores"]) for host in hosts}
    if len(set(cores.values())) > 1:
        advice = "give each as many slots as it has cores or GPUs; slower ranks hold up the others"
        yield Finding(Weight.NOTE, (), f"hosts differ in cores: {_shown(cores)}", advice)


def _shown(value_by_host: Mapping[str, str]) -> str:
    """``2 (a, b), 3 (c)``."""
    hosts_by_value: dict[str, list[str]] = {}
    for host, value in value_by_host.items():
        hosts_by_value.setdefault(value, []).append(host)
    return ", ".join(f"{value} ({', '.join(hosts)})" for value, hosts in hosts_by_value.items())

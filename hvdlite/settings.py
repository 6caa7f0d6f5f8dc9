"""Every setting in one typed table; nothing else reads the environment.

A setting called ``fusion_threshold`` is the variable ``HVDLITE_FUSION_THRESHOLD``. If Horovod has the same setting,
``HOROVOD_FUSION_THRESHOLD`` works too, and the ``HVDLITE_`` name wins. Settings are read once per ``init``. ``hvdrun
--settings`` and ``docs/settings.md`` print this table. If hvdrun did not start the process, its rank comes from the
variables of whatever did, see `hvdlite.launched_by`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hvdlite.compat import settings_of_horovod
from hvdlite.launched_by.detect import detect, doubt

_MAX_FLOAT = 1e6  # eleven days in seconds: practically no limit, and still few enough milliseconds for a poll
_MAX_PORT = 65535
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


def _setting(
    default: Any,
    meaning: str,
    *,
    unit: str = "",
    horovod: bool = False,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    begins: str = "",
) -> Any:
    """A row of the table; the first one of a subject ``begins`` it."""
    limits = dict(at_least=at_least, at_most=at_most, choices=choices)
    metadata = dict(meaning=meaning, unit=unit, horovod=horovod, secret=secret, begins=begins, **limits)
    return field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, slots=True)
class Start:
    """The launcher's settings, which define the rank of this process; already validated.

    hvdrun sets these, or they come from the variables of torchrun, mpirun or srun; without a launcher the defaults make
    a job of one. Once the ranks have met, `Membership` replaces them.
    """

    rank: int = _setting(0, "rank of this process", horovod=True, at_least=0, begins="This process")
    size: int = _setting(1, "number of ranks of the job", horovod=True, at_least=1)
    local_rank: int = _setting(0, "rank among the ranks of this host", horovod=True, at_least=0)
    local_size: int = _setting(1, "number of ranks on this host", horovod=True, at_least=1)
    cross_rank: int = _setting(0, "index among the hosts that have this local rank", horovod=True, at_least=0)
    cross_size: int = _setting(1, "number of hosts that have this local rank", horovod=True, at_least=1)
    hostname: str = _setting("", "name of this host in messages; empty: the system's", horovod=True)
    hostid: str = _setting("", "identity of this host; ranks with equal ids share memory; empty: the kernel's")
    job: str = _setting("", "name of the job; no other job has it at the same time")
    rendezvous: str = _setting("", "address where the ranks of the job find each other")
    coordinator: str = _setting("", "HOST or HOST:PORT of rank 0 in a job on several hosts that hvdrun did not start")
    secret: str = _setting("", "key of the job, 64 hexadecimal digits; never printed", secret=True)
    timeline_address: str = _setting("", "address at which hvdrun takes the timeline of all ranks")
    run_address: str = _setting("", "address from which a rank of hvdlite.run() fetches its function")
    run_secret: str = _setting("", "key of that address, 64 hexadecimal digits; never printed", secret=True)

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None, pid: int = 0) -> Start:
        """Reads ``environ``, by default this process's, else the environment of process ``pid``.

        Raises ValueError naming the variable.
        """
        environ = os.environ if environ is None else environ
        start = cls(**_values(cls, {**detect(environ, pid), **environ}))
        if start.rank >= start.size:
            raise ValueError(f"HVDLITE_RANK={start.rank} must be below HVDLITE_SIZE={start.size}")
        return start


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one session, already validated."""

    address: str = _setting(
        "", "IP address where this rank's links across hosts listen; empty: the loopback's", begins="This host"
    )
    port_range: str = _setting("", "ports where this rank's links across hosts listen, as in 40000-40100; empty: any")
    encrypt_data: bool = _setting(False, "also encrypt tensors between hosts; control messages always are")
    report: str = _setting("", "pipe to hvdrun for the reason why a rank's session ended, as DESCRIPTOR:INODE")
    blackbox: str = _setting("", "memory of hvdrun in which a rank records what it does, as DESCRIPTOR:INODE")
    fusion_threshold: int = _setting(
        128 << 20,
        "largest batch made of several tensors; 0: no fusion",
        unit="bytes",
        horovod=True,
        at_least=0,
        begins="Negotiation",
    )
    cache_capacity: int = _setting(
        16384, "number of tensors whose descriptions are cached; 0: none", unit="tensors", horovod=True, at_least=0
    )
    cycle_time: float = _setting(
        0.0, "how long ready tensors are held back to fuse more of them", unit="ms", horovod=True, at_least=0
    )
    page: bool = _setting(
        True, "ranks of a host agree on known tensors in shared memory, not by messages; its first rank decides"
    )
    stall_check_disable: bool = _setting(False, "do not warn when some ranks do not submit a tensor", horovod=True)
    stall_check_time_seconds: float = _setting(
        10.0, "a tensor missing on some ranks for this long is reported", unit="s", horovod=True, at_least=0
    )
    stall_shutdown_time_seconds: float = _setting(
        0.0, "a tensor missing for this long fails the job with Stalled; 0: never", unit="s", horovod=True, at_least=0
    )

    start_timeout: float = _setting(
        60.0,
        "how long init waits for all ranks of the job",
        unit="s",
        horovod=True,
        at_least=0,
        begins="Waiting for peers",
    )
    shutdown_timeout: float = _setting(10.0, "how long shutdown waits for running batches", unit="s", at_least=0)
    heartbeat_interval: float = _setting(0.5, "time between heartbeats of a quiet link", unit="s", at_least=0.05)
    peer_timeout: float = _setting(2.5, "a peer whose heartbeats stop for this long is lost", unit="s", at_least=0.1)
    progress_timeout: float = _setting(
        120.0, "a running batch that moves no bytes for this long fails", unit="s", at_least=1
    )

    check_parameters: str = _setting(
        "1",
        "compare the parameters of all ranks, all in an optimizer's first step and some in each later one; 1: warn of "
        "a difference; error: raise Mismatch on all ranks; 0 on one rank: off for all",
        choices=("0", "1", "error"),
        begins="Training",
    )
    horovod_compat: str = _setting(
        "auto",
        "whether 'import horovod' means hvdlite in ranks of hvdrun; auto: where no Horovod is installed, 1: always",
        choices=("auto", "0", "1"),
    )
    tensorflow_route: str = _setting(
        "auto",
        "how graphs of TensorFlow call hvdlite; auto: compiled operations if there is a compiler, else "
        "tf.numpy_function",
        choices=("auto", "compiled", "numpy"),
    )

    plane: str = _setting(
        "auto",
        "data plane; auto: shared memory within a host, ring across, hierarchical for several hosts with several ranks",
        choices=("auto", "local", "shm", "ring", "hierarchical", "zmq"),
        begins="Data planes",
    )
    gpu_plane: str = _setting(
        "auto",
        "data plane for GPU memory; auto: NCCL if all ranks of the group have it, else staged through host memory",
        choices=("auto", "nccl", "staged"),
    )
    shm_chunk: int = _setting(
        0, "bytes of one shared-memory slot; 0: chosen by the number of cores", unit="bytes", at_least=0
    )
    shm_slots: int = _setting(4, "slots of each rank, the depth of the pipeline", at_least=2)
    spin: float = _setting(
        -1.0,
        "how long a waiting rank spins before it sleeps; spins that keep failing become rare, and after a short sleep "
        "a call spins for four times as long; negative: as long as a wake-up takes on its host, 50 to 2000, or 0 with "
        "more ranks than cores; those yield to each other",
        unit="µs",
        at_least=-1,
    )
    ring_chunk: int = _setting(512 << 10, "bytes of one frame of the ring", unit="bytes", at_least=4096)
    ring_window: int = _setting(8, "frames a rank may be ahead of its neighbour", unit="frames", at_least=1)
    ring_connections: int = _setting(
        1, "connections to each neighbour of a ring across hosts, 16 at most", at_least=1, at_most=16
    )
    keep_freed: bool = _setting(
        True,
        "let glibc keep freed memory for the next batch or step; 0, or a variable of glibc such as "
        "MALLOC_TRIM_THRESHOLD_, leaves its allocator alone",
    )

    timeline: str = _setting(
        "",
        "file of the timeline, written by hvdrun; without hvdrun each of several ranks writes FILE.rankN; DYNAMIC: "
        "none before start_timeline(); empty: none",
        horovod=True,
        begins="Timeline",
    )
    torch_default: bool = _setting(
        False, "torch.distributed uses hvdlite for CPUs where a program names no back end; read as torch is imported"
    )
    timeline_mark_cycles: bool = _setting(False, "mark the begin of each cycle in the timeline", horovod=True)

    log_level: str = _setting(
        "warning",
        "least severe message that is printed",
        horovod=True,
        choices=("trace", "debug", "info", "warning", "error", "fatal"),
        begins="Messages",
    )
    log_hide_time: bool = _setting(False, "no time stamps in messages", horovod=True)
    summary: bool = _setting(
        True,
        "report at the end of a job of 2 s or more where its time went, or that its ranks did nothing together; hvdrun "
        "--quiet turns it off",
    )
    traceback: str = _setting(
        "short",
        "short: uncaught errors of the user are shown without frames of hvdlite below the user's call",
        choices=("short", "full"),
    )

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Reads ``environ``, by default this process's. Raises ValueError naming the variable."""
        settings = cls(**_values(cls, {**settings_of_horovod(), **os.environ} if environ is None else environ))
        _ = settings.ports
        return settings

    @property
    def ports(self) -> range | None:
        """``port_range`` as numbers, None for any. Raises ValueError naming the variable, but never after `read`."""
        return parse_ports(self.port_range)


def _values(part: type[Start | Settings], environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for spec in _rows(part):
        for name in spec.variables:
            if (text := environ.get(name)) is not None:
                values[spec.name] = spec.parse(name, text)
                break
    return values


def cache_home() -> Path:
    """Returns the folder for caches of this user, ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.cache"))


def doubt_about_size() -> str:
    """Returns why the user probably did not want a job of one; empty if nothing suggests that."""
    return doubt(os.environ)


@dataclass(frozen=True, slots=True)
class Spec:
    """One row of the table, as it is printed."""

    name: str
    kind: type
    default: Any
    meaning: str
    unit: str
    horovod: bool
    at_least: float | None
    at_most: float | None
    choices: tuple[str, ...]
    secret: bool
    begins: str

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the variable, the one that wins first."""
        upper = self.name.upper()
        return (f"HVDLITE_{upper}", f"HOROVOD_{upper}") if self.horovod else (f"HVDLITE_{upper}",)

    def parse(self, variable: str, text: str) -> Any:
        """Parses ``text``. Raises ValueError that names ``variable`` and the valid values."""
        if self.kind is bool:
            return parse_switch(variable, text)
        if self.kind is str:
            word = text.strip().lower() if self.choices else text
            if "0" in self.choices and word in _TRUE | _FALSE:  # a switch that has more positions
                return "1" if word in _TRUE else "0"
            if self.choices and word not in self.choices:
                raise ValueError(f"{variable}={text!r} must be one of {', '.join(self.choices)}")
            return word
        try:
            value = self.kind(text)
        except ValueError:
            noun = "a whole number" if self.kind is int else "a number"
            raise ValueError(f"{variable}={text!r} must be {noun}") from None
        if value != value or (self.at_least is not None and value < self.at_least):
            raise ValueError(f"{variable}={text!r} must be at least {self.at_least:g}")
        most = _MAX_FLOAT if self.kind is float and self.at_most is None else self.at_most
        if most is not None and value > most:
            raise ValueError(f"{variable}={text!r} must be at most {most:g}")
        return value


def parse_switch(variable: str, text: str) -> bool:
    """Parses ``1``, ``yes``, ``off`` and the like. Raises ValueError that names ``variable``."""
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError(f"{variable}={text!r} must be 0 or 1")


def table() -> Iterator[Spec]:
    """The rows of the table, in the order of the documentation."""
    yield from _rows(Start)
    yield from _rows(Settings)


def _rows(part: type[Start | Settings]) -> Iterator[Spec]:
    for entry in fields(part):
        kind = {"int": int, "float": float, "bool": bool, "str": str}[str(entry.type)]
        yield Spec(name=entry.name, kind=kind, default=entry.default, **entry.metadata)


def parse_ports(text: str) -> range | None:
    """The ports of ``HVDLITE_PORT_RANGE=text``, None for any. Raises ValueError naming the variable."""
    if not text:
        return None
    first, dash, last = text.partition("-")
    numbers = [int(part) for part in (first, last if dash else first) if part.isascii() and part.isdigit()]
    if len(numbers) != 2 or not 1 <= numbers[0] <= numbers[1] <= _MAX_PORT:
        raise ValueError(f"HVDLITE_PORT_RANGE={text!r} must be two ports, the lower one first, as in 40000-40100")
    return range(numbers[0], numbers[1] + 1)

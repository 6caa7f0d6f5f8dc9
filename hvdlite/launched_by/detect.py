"""Turns the environment that an engine has set into the settings of a rank.

HVDLITE_RANK and HVDLITE_SIZE come first, so hvdrun works inside any engine. An engine inside hvdrun is refused, since
all its ranks would take the one number that hvdrun assigned; an hvdrun inside hvdrun is not. Otherwise the first
matching row of `ENGINES` counts. It is an error if a process is one of several, but its environment lacks its rank: N
jobs of one rank would train and be wrong silently.
"""

from __future__ import annotations

from typing import Final

from hvdlite.host.ancestor import started_without, value_at
from hvdlite.launched_by.table import ENGINES, Engine
from hvdlite.launched_by.variables import Environ, number

_SIZES: Final = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
OF_HVDRUN: Final = "HVDLITE_RENDEZVOUS"  # which it sets for its ranks
_BY_HAND: Final = "start it with hvdrun, or set HVDLITE_RANK and HVDLITE_SIZE yourself (HVDLITE_SIZE=1: a job of one)"


def detect(environ: Environ, pid: int = 0) -> dict[str, str]:
    """Translates the engine's variables into variables of settings; returns none if no engine started the process.

    ``environ`` is the environment of process ``pid``, by default of this one. Raises ValueError if the process is one
    of several, but the environment lacks its rank or the place of the others.
    """
    if is_explicit(environ):
        _refuse_engine_in_hvdrun(environ, pid)
        return {}
    engine = engine_of(environ)
    if engine is None:
        _refuse_one_of_several(environ)
        return {}
    rank, size, local_size = number(environ, engine.rank), number(environ, engine.size), engine.local_size(environ)
    if rank >= size:
        raise ValueError(f"{engine.rank}={rank} must be below {engine.size}={size}")
    found = {
        "HVDLITE_RANK": str(rank),
        "HVDLITE_SIZE": str(size),
        "HVDLITE_LOCAL_RANK": environ.get(engine.local_rank, "0"),
        "HVDLITE_LOCAL_SIZE": str(local_size),
    }
    if job := engine.job(environ, pid):
        found["HVDLITE_JOB"] = f"{engine.name} {job}"
    if local_size < size:
        found["HVDLITE_COORDINATOR"] = _coordinator(engine, environ)
    return found


def doubt(environ: Environ) -> str:
    """Returns why the user probably did not want a job of one; empty if nothing suggests that."""
    if is_explicit(environ) or engine_of(environ):
        return ""
    tasks = environ.get("SLURM_NTASKS", "1")
    if "SLURM_JOB_ID" in environ and tasks != "1":
        return (
            f"this is a job of one rank in a Slurm allocation of {tasks} tasks, since srun did not start it; "
            "start it with srun or hvdrun for more"
        )
    if "PMIX_RANK" in environ:
        return f"this is a job of one rank although a launcher has set PMIX_RANK; {_BY_HAND}"
    return ""


def is_explicit(environ: Environ) -> bool:
    """True if hvdlite's own variables set the rank, so that no engine's count."""
    return "HVDLITE_RANK" in environ or "HVDLITE_SIZE" in environ


def engine_of(environ: Environ) -> Engine | None:
    """The engine whose variables count."""
    return next((engine for engine in ENGINES if engine.started(environ)), None)


def _refuse_one_of_several(environ: Environ) -> None:
    for name in _SIZES:
        if name in environ and number(environ, name) > 1:
            lacking = min((engine.lacking(environ) for engine in ENGINES if engine.size == name), key=len)
            raise ValueError(
                f"{name}={environ[name]} says that this process is one of several, but not which and where the others "
                f"are: {' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing. Unset it, {_BY_HAND}"
            )


def _refuse_engine_in_hvdrun(environ: Environ, pid: int) -> None:
    for engine in ENGINES if OF_HVDRUN in environ else ():
        is_one_of_several = engine.started(environ) and number(environ, engine.size) > 1
        # The engine is one of this job only if it has inherited the job: an inner hvdrun's ranks meet elsewhere.
        if is_one_of_several and value_at(started_without(engine.mark, pid), OF_HVDRUN) == environ[OF_HVDRUN]:
            raise ValueError(
                f"hvdrun has started {engine.name}, and {engine.name} this process: it is rank "
                f"{environ.get('HVDLITE_RANK')} of {environ.get('HVDLITE_SIZE')} of the one, and rank "
                f"{environ[engine.rank]} of {environ[engine.size]} of the other. Start the ranks with one of them"
            )


def _coordinator(engine: Engine, environ: Environ) -> str:
    """The host of rank 0. Raises ValueError if the user has to set it or the key, and has not."""
    host = environ.get("HVDLITE_COORDINATOR") or engine.host_of_rank_0(environ)
    missing = {
        "HVDLITE_COORDINATOR": "" if host else "the name of rank 0's host, which the engine does not provide",
        "HVDLITE_SECRET": ""
        if environ.get("HVDLITE_SECRET")
        else "a key that keeps strangers out, from 'openssl rand -hex 32'",
    }
    needs = [f"{name}, {meaning} ({engine.pass_on.format(name)})" for name, meaning in missing.items() if meaning]
    if needs:
        raise ValueError(f"{engine.name} has started ranks on several hosts, which need {', and '.join(needs)}")
    return host

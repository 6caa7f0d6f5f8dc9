"""Starts an agent on a node of the Slurm job that hvdrun runs in, as a step of one task that overlaps all others.

srun carries the agent's stdin and stdout, unbuffered: otherwise it would hold back what does not end with a newline.
The step may use whatever the job has on the node, cores, memory and GPUs, while another step uses them too. What srun
reads from the environment describes the job, or the step that hvdrun itself is, and is taken out. Nothing secret is in
the command: Slurm stores and shows the arguments of a step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from hvdlite.launched_by.slurm import not_of_the_job

from ..agent.ending.guard import SCHEDULED
from ..where.hosts import Host
from .boot import line_elsewhere
from .ssh import SshOptions, advised, agent_killed, ended

_OPTIONS: Final = (
    "--overlap",  # the script that runs hvdrun is a step as well
    "--nodes=1",
    "--ntasks=1",
    "--mem=0",  # all that the job has there
    "--cpu-bind=none",  # to any of the job's cores there; the ranks share them
    "--mpi=none",
    "--unbuffered",
    "--export=ALL",
    "--chdir=/",  # the agent changes to the working directory, which may not be there yet
)
NOISE: Final = "cluster configuration lacks support for cpu binding"  # as if it had been asked for one
_ADVICE: Final = (
    ("is not installed for", "install it there, or name the Python that has it with --remote-python"),
    ("Invalid job id", "the job has ended, or belongs to another cluster"),
    ("already completing or completed", "the job is ending"),
    ("Requested node configuration is not available", "look at the node with 'scontrol show node {name}'"),
    ("Invalid generic resource", "ask Slurm for GPUs by node, as in --gpus-per-node=4"),
    ("Unable to create step", "see whether 'srun --overlap --nodelist={name} hostname' works in this job"),
    ("Unable to contact slurm controller", "see whether 'sinfo' works here"),
)


def agent_command(host: Host, options: SshOptions) -> list[str]:
    """The srun command whose stdin and stdout are those of an agent on ``host``."""
    unset = [word for name in not_of_the_job(os.environ) for word in ("-u", name)]
    command = [*(["env", *unset] if unset else []), "srun", f"--jobid={host.job}", f"--nodelist={host.name}"]
    gpus = [f"--gpus={host.gpus}"] if host.gpus else []
    return [*command, *_OPTIONS, *gpus, "sh", "-c", line_elsewhere(options.python, SCHEDULED)]


def explain(host: Host, said: Sequence[str], code: int) -> str:
    """One line: why srun, or the agent, ended with ``code``, and what to do about it."""
    return agent_killed(code) or advised(_ADVICE, host, said) or ended("srun", said, code)

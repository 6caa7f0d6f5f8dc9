"""``hvdrun``: the command line.

Options come first; from the command on, every word belongs to the command, unchanged. An error in what the user typed
is one line on stderr and exit code 2, before anything is started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import click

from hvdlite.blackbox.format import printable
from hvdlite.errors import LaunchError
from hvdlite.settings import Settings
from hvdlite.version import __version__

from .blackbox.command import blackbox
from .check_build import describe_build
from .decisions.endings import ending_of
from .decisions.plan import wanted_hosts
from .doctor.command import doctor
from .launch import launch, say
from .monitor.choosing import JobNotNamed
from .network.attempts import HostsUnreached
from .nodes.place import NodePlace, doubt
from .options.command import LaunchCommand, complete_command
from .options.completion import completion
from .options.config_file import read_config
from .options.environment import environment_of
from .options.flags import resolve
from .options.horovodrun import install, uninstall
from .options.hosts import HostOptions, host_options
from .options.job import JobOptions, OutputOptions, job_options, output_options
from .options.nodes import NodeOptions, node_options
from .options.program import check_command, check_meaning
from .options.table import horovod_options, typed_flags
from .screen.texts import describe_settings
from .timeline.command import timeline
from .top.command import top
from .top.stacks import stacks
from .where.hosts import Host
from .where.scheduled import scheduled_hosts

_OTHERS: Final = (blackbox, completion, doctor, stacks, timeline, top)
_LIKE_COMMANDS: Final = (
    "settings",
    "check-build",
    "dry-run",
    "version",
    "install-horovodrun",
    "uninstall-horovodrun",
)  # of the options


@click.command(
    cls=LaunchCommand,
    subcommands=_OTHERS,
    context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False},
    epilog="Example: hvdrun -np 4 python train.py --epochs 3. Flags of Horovod that are not listed do nothing here or "
    "are refused, and hvdrun says why.",
)
@job_options
@host_options
@node_options
@output_options
@click.option("--dry-run", "is_dry", is_flag=True, help="Show what would be started, and where.")
@click.option("-cb", "--check-build", "checks_build", is_flag=True, help="Show what is built and available.")
@click.option("--settings", "shows_settings", is_flag=True, help="Show all settings and their current values.")
@click.option("--install-horovodrun/--uninstall-horovodrun", "installs_horovodrun", default=None,
              help="Write Horovod's command, for scripts that call it, beside hvdrun; or remove it.")  # fmt: skip
@click.version_option(__version__, "-v", "--version", message="hvdrun %(version)s")
@horovod_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_command)
def hvdrun(
    job: JobOptions,
    where: HostOptions,
    node: NodeOptions,
    output: OutputOptions,
    is_dry: bool,
    checks_build: bool,
    shows_settings: bool,
    installs_horovodrun: bool | None,
    command: tuple[str, ...],
    **flags: bool | str | tuple[str, ...] | None,
) -> int:
    """Starts COMMAND as a job of N processes that train together."""
    if installs_horovodrun is not None:
        if command:
            raise click.UsageError("--install-horovodrun and --uninstall-horovodrun take no command; leave it out.")
        _print(install() if installs_horovodrun else uninstall())
        return 0
    outcome = resolve(read_config(job.config_file) if job.config_file is not None else (), typed_flags(flags))
    environment = environment_of(job, outcome.settings)
    if checks_build or shows_settings:
        _print(describe_build() if checks_build else describe_settings(environment))
        return 0
    if command:
        _check_words(command, environment, where)
    place = _place(node, where)
    if place is None and not (_is_alone() or where.are_named) and (text := doubt(os.environ)):
        say(f"{printable(text)}.")
    if place is not None and (place.count > 1 or not job.is_counted):
        job = job.with_slots(place.slots)
    listed = where.listed() or (_allocated(job) if place is None else ())
    if command:
        check_command(command, environment, where, listed, is_counted=job.is_counted or place is not None)
    elif place is None:
        wanted_hosts(listed, job.size, job.per_host, job.gpus_per_rank)
    if not command:
        raise click.UsageError("no command was given; write it last, as in hvdrun -np 4 python train.py.")
    if job.encrypts:
        environment["HVDLITE_ENCRYPT_DATA"] = "1"
    if output.is_quiet:
        environment["HVDLITE_SUMMARY"] = "0"
    if where.ports:
        environment["HVDLITE_PORT_RANGE"] = f"{where.ports[0]}-{where.ports[-1]}"
    job.check_gpus()
    start = partial(launch, command, where, output, environment, outcome)
    if place is not None and place.count > 1:
        if is_dry:
            raise click.UsageError("--dry-run shows what one hvdrun would start, and this is one of several nodes.")
        return _as_node(place, node, job, environment, start)
    if place is not None and not job.is_counted:
        listed = (Host("localhost"),)
    return start(job, listed, is_dry=is_dry)


def _place(node: NodeOptions, where: HostOptions) -> NodePlace | None:
    """Which node of a job this is, if hvdrun is started on every node; None if it is started once."""
    if node.are_given and where.are_named:
        raise click.UsageError("hosts of -H and --hostfile are reached by ssh; leave them out with --node-rank.")
    if not node.are_given and (_is_alone() or where.are_named):
        return None
    return node.place(os.environ)


def _is_alone() -> bool:
    """True if hvdrun belongs to hvdlite.run() or to a rank: the scheduler's variables are not for it."""
    return click.get_current_context().obj is not None or "HVDLITE_RANK" in os.environ


def _allocated(job: JobOptions) -> tuple[Host, ...]:
    """The hosts that a scheduler or operator has given to the job that hvdrun was started in, or none."""
    if _is_alone():
        return ()
    size = job.size if isinstance(job.size, int) else None
    found = scheduled_hosts(os.environ, size, by_gpus=job.size == "auto" or job.gpus_per_rank is not None)
    return found.hosts if found else ()


def _as_node(
    place: NodePlace, node: NodeOptions, job: JobOptions, environment: dict[str, str], start: Callable[..., int]
) -> int:
    """Runs this node: node 0 starts the job with ``start``. Returns the exit code of the job."""
    # Each node is a host of its own: containers on one machine may share its network, but neither GPUs nor processes.
    for variables in (environment, os.environ):  # of ranks here, and of the agent whose ranks inherit them
        variables.setdefault("HVDLITE_HOSTID", f"node {place.rank}")
    # Imported here, for most jobs have no nodes, and would start later.
    from hvdlite.net.sealed import NoLibcrypto

    from .nodes.gathering import Gathering
    from .nodes.node import ending_by_signal, join

    secret, timeout_s = node.secret(os.environ), Settings.read(environment).start_timeout
    try:
        with ending_by_signal():
            if place.rank > 0:
                return join(place, secret, job.per_host, timeout_s, say)
            # Some operators set the port for the nodes a second time, as the one where ranks of torch.distributed meet.
            if environment.get("MASTER_PORT") == str(place.master.port) and "MASTER_PORT" not in job.named:
                for name in ("MASTER_ADDR", "MASTER_PORT"):
                    environment.pop(name, None)
            with Gathering(place, secret, say) as nodes:
                nodes.wait(timeout_s)
                if job.size == "auto" or job.gpus_per_rank is not None:
                    return start(job, nodes.hosts(), nodes.ways)
                # Each node has reported how many ranks it takes.
                return start(job._replace(per_host=None), nodes.hosts_with_slots(job.per_host), nodes.ways)
    except NoLibcrypto as error:
        raise click.UsageError(f"nodes talk to each other encrypted, but {error}; use another Python.") from None


def _open_missing_streams() -> None:
    """Opens /dev/null as descriptors 0 to 2 if the caller closed them, as in ``hvdrun ... >&-``."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - open as long as the process
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs hvdrun and returns its exit code. Usage errors and failures to start are one line on stderr."""
    try:
        _open_missing_streams()
        return int(hvdrun.main(arguments, "hvdrun", standalone_mode=False) or 0)
    except (click.ClickException, click.Abort, KeyboardInterrupt, LaunchError, ValueError, OSError) as error:
        if isinstance(error, HostsUnreached | JobNotNamed):
            print("\n".join(map(printable, error.report)), file=sys.stderr)
        code, text = ending_of(error)
    if message := " ".join(text.split()):
        stop = "" if message.endswith((".", "?")) else "."
        print(f"hvdrun: {printable(message)}{stop} See 'hvdrun --help'.", file=sys.stderr)
    return code


def _check_words(command: Sequence[str], environment: Mapping[str, str], where: HostOptions) -> None:
    """Raises UsageError for a command whose first word was meant as something else."""
    own = {str(other.name): f"hvdrun {other.name}" for other in _OTHERS}
    likely = own | {name: f"hvdrun --{name}" for name in _LIKE_COMMANDS}
    check_meaning(command, environment.get("PATH", os.defpath), where.hosts, likely)


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        click.echo(line)


if __name__ == "__main__":
    sys.exit(main())

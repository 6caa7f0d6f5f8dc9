"""``hvdrun``: the command line.

Options come first; from the command on, every word belongs to the command, unchanged. An error in what the user typed
is one line on stderr and exit code 2, before anything is started.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final

import click

from hvdlite.compat import python_path
from hvdlite.errors import BadHostSpec, LaunchError
from hvdlite.launched_by.slurm import without_step
from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.server import RendezvousServer
from hvdlite.settings import Settings
from hvdlite.version import __version__

from .agents.agents import Agents
from .agents.fields import printable
from .agents.ways import Way
from .allocation import allocation_of
from .blackbox.command import blackbox
from .check_build import describe_build
from .doctor.command import doctor
from .endings import ending_of
from .hostlists import hosts_of
from .hosts import Host, is_local, own_names
from .job.execute import FailureReport, execute
from .job.logs import Logs
from .job.plan import Plan, wanted_hosts
from .job.preparation import Request, prepare, sketch
from .network.attempts import HostsUnreached
from .nodes.place import NodePlace, doubt
from .options.command import LaunchCommand, complete_command
from .options.completion import completion
from .options.config_file import read_config
from .options.flags import SETTINGS, Outcome, resolve
from .options.hosts import HostOptions, host_options
from .options.job import JobOptions, OutputOptions, job_options, output_options
from .options.nodes import NodeOptions, node_options
from .options.of_python import check_target
from .options.program import check_meaning, check_not_a_host, check_order, check_program
from .options.spelling import misspelt
from .options.table import horovod_options, typed_flags
from .screen.screen import Screen
from .screen.texts import describe_plan, describe_settings
from .spawners import ways_to
from .timeline.command import timeline
from .top.command import top
from .top.stacks import stacks

_VARIABLE: Final = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<assigns>=)?(?P<value>.*)", re.DOTALL)
_OTHERS: Final = (blackbox, completion, doctor, stacks, timeline, top)
_LIKE_COMMANDS: Final = ("settings", "check-build", "dry-run", "version")  # of the options


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
    command: tuple[str, ...],
    **flags: bool | str | tuple[str, ...] | None,
) -> int:
    """Starts COMMAND as a job of N processes that train together."""
    outcome = resolve(read_config(job.config_file) if job.config_file is not None else (), typed_flags(flags))
    environment = _environment(job, outcome.settings)
    if checks_build or shows_settings:
        _print(describe_build() if checks_build else describe_settings(environment))
        return 0
    if command:
        _check_words(command, environment, where)
    place = _place(node, where)
    if place is None and not (_is_alone() or where.are_named) and (text := doubt(os.environ)):
        _say(f"{printable(text)}.")
    if place is not None and (place.count > 1 or not job.is_counted):
        job = job.with_slots(place.slots)
    listed = where.listed() or (_allocated(job) if place is None else ())
    if command:
        _check_command(command, environment, where, listed, is_counted=job.is_counted or place is not None)
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
    launch = partial(_launch, command, where, output, environment, outcome)
    if place is not None and place.count > 1:
        if is_dry:
            raise click.UsageError("--dry-run shows what one hvdrun would start, and this is one of several nodes.")
        return _as_node(place, node, job, environment, launch)
    if place is not None and not job.is_counted:
        listed = (Host("localhost"),)
    return launch(job, listed, is_dry=is_dry)


def _launch(
    command: tuple[str, ...],
    where: HostOptions,
    output: OutputOptions,
    environment: dict[str, str],
    outcome: Outcome,
    job: JobOptions,
    listed: Sequence[Host],
    ways: Mapping[str, Way] | None = None,
    *,
    is_dry: bool = False,
) -> int:
    """Runs the job on the hosts that are ``listed``, of which ``ways`` lead to some; returns its exit code."""
    hosts = wanted_hosts(listed, job.size, job.per_host, job.gpus_per_rank)
    request = Request(
        command,
        hosts,
        job.size,
        environment,
        job.named,
        where.interfaces,
        where.ports,
        job.syncs,
        job.gpus_per_rank,
        job.per_host,
    )
    identity = Job.create()
    _print_notes([*outcome.notes, *_counted_twice(hosts)])
    for wrong, right in misspelt(environment):
        _say(f"there is no setting {wrong}; did you mean {right}?")
    if is_dry:
        plan = sketch(request, identity)
        job.readers(plan.size)
        _print_notes(_without_ranks(hosts, plan))
        _print(describe_plan(plan, os.environ, ways_to(hosts, plan.hosts, where.ssh), output.is_verbose))
        return 0
    with Agents(where.ssh, _say, ways) as agents:
        plan = prepare(request, identity, agents, _say if output.is_verbose else _ignore)
        readers = job.readers(plan.size)
        idle = _without_ranks(hosts, plan)
        if ways and idle:
            raise BadHostSpec(f"{idle[0]}; start fewer nodes, or more ranks, or give each node fewer with -ppn.")
        _print_notes(idle)
        with (
            _logs(output.folder, plan.size) as logs,
            RendezvousServer(identity, plan.size) as server,
            _timeline(plan, identity) as plan,
        ):
            streams = sys.stdout.fileno(), sys.stderr.fileno()
            screen = Screen(*streams, os.environ, has_timestamps=output.has_timestamps)
            plan = plan.meeting_at(server.address)
            on_failure: FailureReport | None = click.get_current_context().obj
            return execute(
                plan,
                agents,
                screen,
                logs,
                readers=readers,
                grace_s=job.grace_s,
                is_verbose=output.is_verbose,
                on_failure=on_failure,
            )


def _place(node: NodeOptions, where: HostOptions) -> NodePlace | None:
    """Which node of a job this is, if hvdrun is started on every node; None if it is started once."""
    if node.are_given and where.are_named:
        raise click.UsageError("hosts of -H and --hostfile are reached by ssh; leave them out with --node-rank.")
    if not node.are_given and (_is_alone() or where.are_named):
        return None
    return node.place(os.environ)


def _is_alone() -> bool:
    """True if hvdrun belongs to hvdlite.run() or to a rank, and what started that means nothing to it."""
    return click.get_current_context().obj is not None or "HVDLITE_RANK" in os.environ


def _allocated(job: JobOptions) -> tuple[Host, ...]:
    """The hosts that a scheduler or operator has given to the job that hvdrun was started in, or none."""
    if _is_alone():
        return ()
    if allocation := allocation_of(os.environ):
        size = job.size if isinstance(job.size, int) else None
        return allocation.hosts(size, by_gpus=job.size == "auto" or job.gpus_per_rank is not None)
    return hosts_of(os.environ)


def _as_node(
    place: NodePlace, node: NodeOptions, job: JobOptions, environment: dict[str, str], launch: Callable[..., int]
) -> int:
    """Runs this node: node 0 starts the job with ``launch``. Returns the exit code of the job."""
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
                return join(place, secret, job.per_host, timeout_s, _say)
            # Some operators set the port for the nodes a second time, as the one where ranks of torch.distributed meet.
            if environment.get("MASTER_PORT") == str(place.port) and "MASTER_PORT" not in job.named:
                for name in ("MASTER_ADDR", "MASTER_PORT"):
                    environment.pop(name, None)
            with Gathering(place, secret, _say) as nodes:
                nodes.wait(timeout_s)
                if job.size == "auto" or job.gpus_per_rank is not None:
                    return launch(job, nodes.hosts(), nodes.ways)
                # Each node has said how many ranks it takes.
                return launch(replace(job, per_host=None), nodes.hosts_with_slots(job.per_host), nodes.ways)
    except NoLibcrypto as error:
        raise click.UsageError(f"nodes talk to each other encrypted, but {error}; use another Python.") from None


def _say(line: str) -> None:
    with suppress(OSError):  # nobody reads it
        print(f"hvdrun: {line}", file=sys.stderr, flush=True)


def _ignore(line: str) -> None:
    """Ignores a message that only --verbose shows."""


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
        if isinstance(error, HostsUnreached):
            print("\n".join(error.report), file=sys.stderr)
        code, text = ending_of(error)
    if message := " ".join(text.split()):
        stop = "" if message.endswith((".", "?")) else "."
        print(f"hvdrun: {message}{stop} See 'hvdrun --help'.", file=sys.stderr)
    return code


def _environment(job: JobOptions, settings: Mapping[str, str]) -> dict[str, str]:
    """The environment that the user wants for the workers: variables of -x win over ``settings`` of flags."""
    environment = without_step(os.environ)
    for name, value in settings.items():
        if job.named.isdisjoint(SETTINGS[name].variables):
            environment |= dict.fromkeys(SETTINGS[name].variables, value)
    for text in job.variables:
        match = _VARIABLE.fullmatch(text)
        if match is None or (match["value"] and not match["assigns"]):
            raise click.UsageError(f"-x {text!r} is not NAME or NAME=VALUE.")
        if match["assigns"]:
            environment[match["name"]] = match["value"]
        elif match["name"] in os.environ:
            environment[match["name"]] = os.environ[match["name"]]
        elif match["name"] not in environment:
            raise click.UsageError(f"-x {text}: there is no such variable here; give it a value with -x {text}=VALUE.")
    if job.is_horovod:
        environment["PYTHONPATH"] = python_path(environment.get("PYTHONPATH"))
        if environment.keys().isdisjoint(SETTINGS["stall_check_time_seconds"].variables):
            environment["HVDLITE_STALL_CHECK_TIME_SECONDS"] = "60"
    return environment


def _check_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    where: HostOptions,
    hosts: Sequence[Host],
    *,
    is_counted: bool,
) -> None:
    """Raises UsageError for a command that is a mistake, or that is not on this host if a rank is to run here."""
    path = environment.get("PATH", os.defpath)
    if where.hosts is not None and not is_counted and all(host.slots is None for host in hosts):
        check_not_a_host(command, path, where.hosts)
    _check_folder()
    if not hosts or any(is_local(host.name) for host in hosts):
        check_program(command, path)
        check_target(command, environment)
    if not hosts and not is_counted:
        check_order(command)


def _check_words(command: Sequence[str], environment: Mapping[str, str], where: HostOptions) -> None:
    """Raises UsageError for a command whose first word was meant as something else."""
    own = {str(other.name): f"hvdrun {other.name}" for other in _OTHERS}
    likely = own | {name: f"hvdrun --{name}" for name in _LIKE_COMMANDS}
    check_meaning(command, environment.get("PATH", os.defpath), where.hosts, likely)


def _counted_twice(hosts: Sequence[Host]) -> list[str]:
    here = own_names(hosts)
    if len(here) < 2:
        return []
    return [f"{' and '.join(here)} are one machine, this one, and count as {len(here)} hosts; {here[0]}:N is one host"]


def _without_ranks(hosts: Sequence[Host], plan: Plan) -> list[str]:
    idle = list(dict.fromkeys(host.name for host in hosts if host.name not in plan.hosts))
    if not idle:
        return []
    return [f"no rank runs on {', '.join(idle)}: {', '.join(plan.hosts)} can take all {plan.size}"]


def _check_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise click.UsageError("the working directory was removed; cd into one that exists.") from None


@contextmanager
def _logs(folder: str | None, size: int) -> Iterator[Logs | None]:
    if folder is None:
        yield None
        return
    try:
        logs = Logs(folder, size)
    except OSError as error:
        raise click.UsageError(f"--output-filename {folder} cannot be used: {error.strerror}.") from None
    try:
        yield logs
    finally:
        logs.close()


@contextmanager
def _timeline(plan: Plan, job: Job) -> Iterator[Plan]:
    """The plan with the timeline that its ranks are to record, which is served meanwhile."""
    path = Settings.read(plan.environment).timeline
    if path in ("", "DYNAMIC"):
        yield plan
        return
    from .job.timeline import Timeline  # for most jobs have none, and would start later

    try:
        served = Timeline(path, job, plan.size, _say)
    except OSError as error:
        raise click.UsageError(f"the timeline {path} cannot be written: {error.strerror}.") from None
    with served:
        yield plan.recording_at(served.address)


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        click.secho(f"hvdrun: {note}", err=True, dim=True, color=False if os.environ.get("NO_COLOR") else None)


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        click.echo(line)


if __name__ == "__main__":
    sys.exit(main())

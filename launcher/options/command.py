"""The form of hvdrun's command line: help in sections, and other commands such as ``hvdrun doctor`` beside it.

hvdrun is one command that starts a job. The name of a subcommand counts only as the very first word, so that a program
of the same name can still be started: ``hvdrun -np 2 doctor``, ``hvdrun -- doctor``.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

SECTIONS: Final[Mapping[str, str]] = {
    "Starting": "num-proc gpus-per-proc stdin grace start-timeout config-file horovod-compat x dry-run",
    "Hosts": "hosts hostfile npernode sync ssh-port ssh-identity-file ssh-args remote-python "
    "network-interface port-range encrypt-data",
    "Nodes": "node-rank nnodes master secret-file",
    "Output": "output-filename prefix-output-with-timestamp verbose quiet log-level log-with-timestamp "
    "log-hide-timestamp timeline-filename timeline-mark-cycles",
    "Tuning": "fusion-threshold-mb cycle-time-ms cache-capacity gloo-timeout-seconds "
    "stall-check stall-check-warning-time-seconds stall-check-shutdown-time-seconds",
    "About": "check-build settings install-horovodrun version help",
}

_OTHERS_OPTIONS: Final = {  # of torchrun, mpirun and others
    "--nproc-per-node": "the number of processes is -np N, or -ppn N on each of several hosts",
    "--np": "the number of processes is -np N, or -np auto",
    "--host": "the hosts are -H HOST:N,...",
    "--standalone": "leave it out, hvdrun needs no rendezvous",
    "--list": "hvdrun --help lists the options, hvdrun --settings the settings",
}
_NAMES_WIDTH: Final = 28  # the descriptions of all sections begin in one column
_FILE: Final = CompletionItem("", type="file")  # the shell's own completion of files


class LaunchCommand(click.Command):
    """A command that has ``subcommands``."""

    def __init__(self, *args: Any, subcommands: Sequence[click.Command] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.subcommands: Final = {str(command.name): command for command in subcommands}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of the command that ``args`` select."""
        if args and args[0] == "help" and not shutil.which("help"):
            if args[1:] and args[1] not in self.subcommands:
                near = get_close_matches(args[1], self.subcommands, 1)
                raise click.UsageError(
                    f"there is no command {args[1]!r}{f'; did you mean {near[0]}?' if near else '.'}"
                )
            args = [*args[1:2], "--help"]
        if args and (command := self.subcommands.get(args[0])) is not None:
            extra = {"help_option_names": ["-h", "--help"], **extra}
            return command.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses ``args``. A long word behind a single dash is refused as a whole, not by its first letter."""
        rest = list(args)
        try:
            return super().parse_args(ctx, rest)
        except click.NoSuchOption as error:
            if meant := _OTHERS_OPTIONS.get(error.option_name.replace("_", "-").partition("=")[0]):
                raise click.NoSuchOption(
                    error.option_name, f"No such option: {error.option_name}; {meant}", ctx=ctx
                ) from None
            word = args[len(args) - len(rest) - 1]
            if len(word) == 2 or word.startswith("--"):
                raise
            known = [name for option in self.params for name in option.opts if name.startswith("-")]
            raise click.NoSuchOption(word, possibilities=get_close_matches(word, known, 1), ctx=ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the options by section and then the other commands."""
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option) and not option.hidden]
        for title, group in sections(options).items():
            records = [record for option in group if (record := option.get_help_record(ctx))]
            with formatter.section(title):
                formatter.write_dl([(names.ljust(_NAMES_WIDTH), text) for names, text in records], _NAMES_WIDTH)
        with formatter.section("Other commands"):
            others = self.subcommands.items()
            formatter.write_dl([(name.ljust(_NAMES_WIDTH), command.get_short_help_str()) for name, command in others])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes hvdrun's options; words behind the job's command are left to the shell."""
        return [_FILE] if ctx.params.get("command") else super().shell_complete(ctx, incomplete)


def complete_command(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes the job's command: a file, or as the very first word one of hvdrun's subcommands."""
    typed = [name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    is_first = all(ctx.params[name] == () for name in typed)
    others = ctx.command.subcommands if is_first and isinstance(ctx.command, LaunchCommand) else {}
    return [CompletionItem(name) for name in others if name.startswith(incomplete)] or [_FILE]


def sections(options: Sequence[click.Option]) -> dict[str, list[click.Option]]:
    """The options under their headings, in the order of the table; the rest comes last, as ``Other``."""
    by_name = {name.strip("-"): option for option in options for name in option.opts}
    found = {title: [by_name[name] for name in names.split() if name in by_name] for title, names in SECTIONS.items()}
    listed = {option.name for group in found.values() for option in group}
    found["Other"] = [option for option in options if option.name not in listed]
    return {title: group for title, group in found.items() if group}

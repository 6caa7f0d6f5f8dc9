"""``hvdrun completion``: prints the script that makes a shell complete hvdrun's options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_HVDRUN_COMPLETE"  # the shell's functions ask hvdrun by it; click answers


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that lets a shell complete hvdrun's options.

    Put it where your shell looks:

    \b
    bash: hvdrun completion bash > ~/.local/share/bash-completion/completions/hvdrun
    zsh:  hvdrun completion zsh > DIRECTORY_OF_FPATH/_hvdrun
    fish: hvdrun completion fish > ~/.config/fish/completions/hvdrun.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this version of click has no completion for {shell}.")
    click.echo(kind(context.command, {}, "hvdrun", _VARIABLE).source())

"""`orbitmq completion`: what a shell needs to complete the command."""

from __future__ import annotations

import click

_HOW = {
    "bash": 'eval "$(orbitmq completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(orbitmq completion zsh)"    # in ~/.zshrc',
    "fish": "orbitmq completion fish | source    # in ~/.config/fish/config.fish",
}


@click.command(epilog="\b\n" + "\n".join(_HOW.values()))
@click.argument("shell", type=click.Choice(list(_HOW)))
def completion(shell: str) -> None:
    """Print the script that makes SHELL complete `orbitmq` commands and options."""
    from click.shell_completion import get_completion_class

    from orbitmq.cli.entry import cli

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "orbitmq", "_ORBITMQ_COMPLETE").source())

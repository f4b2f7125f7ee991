"""dload completion"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from dload.cli.session import Session, verb


@verb("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(session: Session, shell: str) -> None:
    """Print what makes a shell complete dload's commands, options and data sets.

    \b
    bash: dload completion bash >> ~/.bashrc
    zsh:  dload completion zsh >> ~/.zshrc
    fish: dload completion fish > ~/.config/fish/completions/dload.fish
    """
    from dload.cli.root import root

    maker = get_completion_class(shell)
    assert maker is not None
    session.out.data(maker(root, {}, "dload", "_DLOAD_COMPLETE").source())

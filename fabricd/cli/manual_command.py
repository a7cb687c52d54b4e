"""``fabricctl completion`` and ``manual``: made from the commands themselves."""

from __future__ import annotations

from typing import Annotated

import typer
import typer.main

from fabricd import __version__
from fabricd.cli import manual
from fabricd.cli.base import put
from fabricd.cli.manual import Node

Shell = Annotated[str, typer.Argument(help="bash, zsh or fish.")]
PROGRAM = "fabricctl"


def completion(shell: Shell) -> None:
    """What completes commands and options in a shell; links by what the system has."""
    makers = {"bash": manual.bash, "zsh": manual.zsh, "fish": manual.fish}
    if shell not in makers:
        raise typer.BadParameter(f'"{shell}"; allowed: {", ".join(makers)}')
    _put(makers[shell](PROGRAM, _tree()))


def manual_page() -> None:
    """The page of the manual, for man(1): all commands with their options."""
    _put(manual.man(PROGRAM, __version__, _tree()))


def _put(text: str) -> None:
    for line in text.splitlines():
        put(line)


def _tree() -> Node:
    from fabricd.cli import application

    return manual.tree(typer.main.get_command(application()))


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(epilog="Example: fabricctl completion bash > ~/.bash_completion")(completion)
    app.command("manual", epilog="Example: fabricctl manual | man -l -")(manual_page)

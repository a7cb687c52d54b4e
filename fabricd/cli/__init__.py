"""``fabricctl``: asks the daemon, and promotes its mode.

Exit status: 0 done, 1 the daemon cannot be reached or says no, 2 wrong usage; `check` has its own.

A module of commands is imported when one of its commands is called: importing all of them takes
longer than most commands.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated

import typer

MODULES: dict[str, tuple[str, ...]] = {
    "view_commands": ("status", "links", "version"),
    "timeline_command": ("timeline", "events"),
    "job_commands": ("top",),
    "training_commands": ("jobs", "migrations"),
    "operator_commands": (
        "explain", "drain", "undrain", "maintenance", "detector", "reload",
    ),
    "locate_command": ("observations", "locate"),
    "clock_command": ("clock",),
    "check_command": ("check",),
    "doctor_command": ("doctor",),
    "plugin_commands": ("plugin",),
    "promote": ("promote",),
    "config_commands": ("config",),
    "probe_commands": ("key", "sniff"),
    "job_directory_command": ("job-directory",),
    "support_command": ("support-bundle",),
    "manual_command": ("completion", "manual"),
}  # fmt: skip
"""Module below this package → the commands that its ``register`` adds."""
COMPLETION = "_FABRICCTL_COMPLETE"
"""Environment variable by which a shell asks for completions."""


def application(words: list[str] | None = None) -> typer.Typer:
    """The program, with all commands or with those of the module that ``words`` need.

    Args:
        words: of the command line behind the program's name; None: all commands.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True, epilog="Example: fabricctl links --json")(_whole)
    for name in _needed(words):
        importlib.import_module(f"{__name__}.{name}").register(app)
    return app


Version = Annotated[
    bool, typer.Option("--version", help="Say the version of this program and end.")
]


def _whole(ctx: typer.Context, version: Version = False) -> None:
    """Ask the fabricd of this host, and tell it what to do. Without a command: its status."""
    if version:
        from fabricd.cli.view_commands import version as say_version

        say_version()
        raise typer.Exit(0)
    if ctx.invoked_subcommand is None:
        from fabricd.cli.view_commands import overview

        overview()


def _needed(words: list[str] | None) -> list[str]:
    """Modules that a command line needs; all where its first word is no command."""
    if words is None or COMPLETION in os.environ:
        return list(MODULES)
    if not words or words == ["--version"]:
        return ["view_commands"]
    found = [name for name, commands in MODULES.items() if words[0] in commands]
    return found or list(MODULES)


def __getattr__(name: str) -> typer.Typer:
    """``app``: the program with all of its commands, made when it is first asked for."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = application()
    globals()["app"] = app
    return app


def main() -> None:
    """Entry point."""
    application(sys.argv[1:])()

"""``fabricctl plugin``: what a job needs to use the plugin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fabricd.cli import plugin_check, plugin_env
from fabricd.cli.base import fail
from fabricd.cli.check_command import CheckCommand

plugin_app = typer.Typer(no_args_is_help=True, help="The plugin, for jobs.")
DEFAULT_CONFIG = Path("/etc/fabricd/fabricd.toml")
DEFAULT_RUN_DIR = Path("/run/fabricd")


def run_dir_of(config: Path | None) -> Path:
    """``[paths] run_dir`` of the configuration; without a file the default.

    Raises:
        plugin_env.PluginError: the file is named but missing, or wrong.
    """
    from fabricd.config.loader import ConfigError, load

    path = config or DEFAULT_CONFIG
    if config is None and not path.exists():
        return DEFAULT_RUN_DIR
    try:
        return Path(load(path, shared_peers=False).paths.run_dir)
    except ConfigError as error:
        raise plugin_env.PluginError(str(error.problems[0])) from error


def plugin_lines(
    form: str,
    library: Path | None,
    config: Path | None,
    named: Path | None = None,
    *,
    by_name: bool,
    job: str,
) -> str:
    """What ``fabricctl plugin env`` prints.

    Args:
        form: one of `plugin_env.FORMATS`.
        library: another one than ours.
        config: the daemon's configuration, for its run directory.
        named: the daemon's run directory; None: as the configuration says.
        by_name: as of `plugin_env.variables`.
        job: likewise.

    Raises:
        plugin_env.PluginError: with a text for the operator.
    """
    run_dir = named if named is not None and config is None else run_dir_of(config)
    found = plugin_env.find_library(library)
    env = plugin_env.variables(found, run_dir, by_name=by_name, job=job)
    return plugin_env.render(form, env, plugin_env.mounts(found, run_dir))


def known_format(form: str) -> str:
    """The format, when there is such a one.

    Raises:
        typer.BadParameter: there is not.
    """
    if form not in plugin_env.FORMATS:
        raise typer.BadParameter(f'"{form}"; allowed: {", ".join(plugin_env.FORMATS)}')
    return form


Format = Annotated[
    str, typer.Option("--format", callback=known_format, help="sh, slurm, k8s, docker or json.")
]
Library = Annotated[Path | None, typer.Option("--library", help="Another library than ours.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="The daemon's configuration, for its run_dir.")
]
RunDir = Annotated[
    Path | None,
    typer.Option("--run-dir", envvar="FABRIC_RUN_DIR", help="The daemon's; --config goes first."),
]
ByName = Annotated[
    bool,
    typer.Option("--by-name", help="For a NCCL or RCCL that takes a name and a search path only."),
]
JobName = Annotated[str, typer.Option("--job", help="Set FABRIC_JOB: the name in fabricctl top.")]


@plugin_app.command("env", epilog='Example: eval "$(fabricctl plugin env)"')
def plugin_environment(
    form: Format = "sh",
    library: Library = None,
    config: ConfigFile = None,
    run_dir: RunDir = None,
    by_name: ByName = False,
    job: JobName = "",
) -> None:
    """The lines a job script needs to use the plugin."""
    try:
        text = plugin_lines(form, library, config, run_dir, by_name=by_name, job=job)
    except plugin_env.PluginError as error:
        fail(str(error))
    else:
        sys.stdout.write(text)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(plugin_app, name="plugin")


plugin_app.command(
    "check", cls=CheckCommand,
    epilog="Example: fabricctl plugin check --hosts gpu-01,gpu-02 --via 'srun -N1 -w {host}'",
)(plugin_check.plugin_check)  # fmt: skip

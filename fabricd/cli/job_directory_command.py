"""``fabricctl job-directory``: directories for the stats pages of jobs that are kept apart."""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import Annotated

import typer

from fabricd.cli.base import fail, out
from fabricd.jobs import job_directory
from fabricd.jobs.job_directory import JobDirectoryError

directory_app = typer.Typer(
    no_args_is_help=True, help="Directories for the stats pages of single jobs."
)

Name = Annotated[str, typer.Argument(help="Of the directory, such as job-17.")]
RunDirectory = Annotated[
    Path, typer.Option("--run-dir", envvar="FABRIC_RUN_DIR", help="The daemon's run directory.")
]
DEFAULT_RUN_DIR = Path("/run/fabricd")


@directory_app.command(epilog="Example: fabricctl job-directory make job-17 --uid 1001")
def make(
    name: Name,
    uid: Annotated[int, typer.Option(min=0, max=2**32 - 2, help="Of the job's user.")],
    gid: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 2, help="Of the job; default: the user's.")
    ] = None,
    run_dir: RunDirectory = DEFAULT_RUN_DIR,
) -> None:
    """Make a job's directory and print its path: mount it as the job's stats directory."""
    if gid is None:
        try:
            gid = pwd.getpwuid(uid).pw_gid
        except KeyError:
            fail(f"uid {uid} has no entry in the user database: give --gid, too")
    try:
        out.print(str(job_directory.make(run_dir / "stats", name, uid, gid)), soft_wrap=True)
    except JobDirectoryError as error:
        fail(str(error))


@directory_app.command(epilog="Example: fabricctl job-directory remove job-17")
def remove(name: Name, run_dir: RunDirectory = DEFAULT_RUN_DIR) -> None:
    """Remove a job's directory, once the job has ended."""
    try:
        job_directory.remove(run_dir / "stats", name)
    except JobDirectoryError as error:
        fail(str(error))


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(directory_app, name="job-directory")

"""``fabric-compute broker``: configuration and access list; runs mosquitto."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Annotated

import typer

from compute import broker_files, quota_keeper
from compute.certificates import FURTHER, Authority, CertificateError, Site
from compute.cli.base import fail, put
from compute.mosquitto import MEMORY_MIB, BrokerFiles
from telemetry.listen import parse_listen

DEFAULT_DIRECTORY = Path("/var/lib/fabric-broker")
DEFAULT_LISTEN = "0.0.0.0:8883"
USER = "mosquitto"
PROGRAMS = "/usr/local/sbin:/usr/sbin:/sbin"

FORMER = "Of versions before; now: certificates"

Names = list[str] | None
Directory = Annotated[Path, typer.Option("--dir", help="What the broker reads lies there.")]
AuthorityDirectory = Annotated[
    Path | None,
    typer.Option("--authority", help="Where the authority lies; beside --dir as a rule."),
]


def broker(
    directory: Directory = DEFAULT_DIRECTORY,
    authority: AuthorityDirectory = None,
    listen: Annotated[str, typer.Option(help="ADDRESS:PORT.")] = DEFAULT_LISTEN,
    name: Annotated[
        Names, typer.Option(help="A name or address in its certificate; may be given again.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="First levels of all topics.")] = None,
    memory: Annotated[
        int, typer.Option("--memory", min=16, help="MiB that its messages may take.")
    ] = MEMORY_MIB,
    user: Annotated[str, typer.Option(help="Whom it becomes where root starts it.")] = "",
    write_only: Annotated[
        bool, typer.Option("--write-only", help="Write the files; run nothing.")
    ] = False,
    run_only: Annotated[
        bool, typer.Option("--run-only", help="Run it with the files that are there.")
    ] = False,
    host: Annotated[Names, typer.Option(help=f"{FORMER} issue.")] = None,
    compute: Annotated[Names, typer.Option(help=f"{FORMER} issue --role compute.")] = None,
    operator: Annotated[Names, typer.Option(help=f"{FORMER} issue --role operator.")] = None,
    revoke: Annotated[Names, typer.Option(help=f"{FORMER} revoke.")] = None,
) -> None:
    """Run a mosquitto that only clients with certificates of this site can use.

    Names and prefix are remembered. Certificates: fabric-compute certificates --help.
    """
    for role, names in (("host", host), ("compute", compute), ("operator", operator)):
        if names:
            fail(f"now: fabric-compute certificates issue {' '.join(names)} --role {role}")
    if revoke:
        fail(f"now: fabric-compute certificates revoke {' '.join(revoke)}")
    files = BrokerFiles(directory)
    if not run_only:
        try:
            address, port = parse_listen(listen)
            _write(files, authority, address, port, name or (), prefix, user or USER, memory)
        except CertificateError as error:
            fail(str(error))
        except OSError as error:
            fail(f"{error.filename or directory}: {error.strerror}")
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    if write_only:
        put(f"{files.configuration}")
        return
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:{PROGRAMS}")
    if program is None:
        fail("mosquitto is not installed (Debian: apt-get install mosquitto)")
    try:
        ids = broker_files.identity_of(user or USER) if os.geteuid() == 0 else None
        if not quota_keeper.start(files, ids):
            put("no certificate for a keeper: fabric-computes alone keep hosts to their shares")
    except OSError as error:
        fail(f"{error.filename or directory}: {error.strerror}")
    os.execv(program, [program, "-c", str(files.configuration)])  # noqa: S606


def _write(
    files: BrokerFiles, where: Path | None, address: str, port: int, names: list[str] | tuple[()],
    prefix: str | None, user: str, memory: int,
) -> None:  # fmt: skip
    broker_files.own(files.directory)
    authority = open_authority(files.directory, where)
    site = authority.site
    site = Site(
        tuple(names) or site.names or (socket.gethostname(),),
        site.prefix if prefix is None else prefix,
    )
    if site != authority.site:
        authority.remember(site)
    for one in authority.names("compute"):
        lacking = [x for x in FURTHER if f"{one}.{x}" not in authority.names(x)]
        if lacking:
            put(
                f"{one} has no certificates for {', '.join(lacking)}, which an older version did "
                f"not make: fabric-compute certificates issue {one} --role compute"
            )
    broker_files.prepare(authority, files, address, port, user, memory)


def open_authority(directory: Path, where: Path | None) -> Authority:
    """The authority of a broker; one of an older layout is moved out of the broker's reach first.

    Raises ``CertificateError`` and ``OSError``.
    """
    place = where or broker_files.default_authority(directory)
    if broker_files.is_older(directory):
        if os.geteuid() != 0:
            put(
                f"the authority's key lies in {directory}, where the broker can read it: run "
                "fabric-compute broker --write-only as root once, as the unit of this version does"
            )
            return Authority(directory)
        broker_files.own(directory)
        for line in broker_files.move_older(directory, place):
            put(line)
    return Authority(place)

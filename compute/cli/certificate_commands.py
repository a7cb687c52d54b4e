"""``fabric-compute certificates``: who may connect to the site's broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from compute import broker_files
from compute.certificates import Authority, CertificateError, Pair
from compute.cli.base import Json, fail, put, put_json, table
from compute.cli.broker_command import (
    DEFAULT_DIRECTORY,
    AuthorityDirectory,
    Directory,
    open_authority,
)
from compute.expel import expel
from compute.mosquitto import BrokerFiles
from telemetry.service import durable

app = typer.Typer(
    no_args_is_help=True,
    help="Certificates of a site's broker. Run as root, where the authority lies.",
    rich_markup_mode=None,
)
MOST_REQUEST = 64 << 10
Clients = Annotated[list[str], typer.Argument(help="Names of clients.")]


@app.command(epilog="Example: fabric-compute certificates issue gpu-01 gpu-02 --out handed-out")
def issue(
    names: Clients,
    role: Annotated[
        Literal["host", "compute", "operator"], typer.Option(help="What they may do.")
    ] = "host",
    out: Annotated[
        Path, typer.Option("--out", help="Where certificate and key are put, once.")
    ] = Path(),
    csr: Annotated[
        Path | None, typer.Option("--csr", help="A request of the one client, which keeps its key.")
    ] = None,
    directory: Directory = DEFAULT_DIRECTORY,
    authority: AuthorityDirectory = None,
) -> None:
    """Issue certificates. Keys are handed out here and kept nowhere else.

    With --csr the client has made its key itself, and only the certificate is written.
    """
    if csr is not None and (len(names) != 1 or role == "compute"):
        fail("--csr is for one host or operator: a fabric-compute has three keys", 2)
    try:
        request = None if csr is None else durable.read(csr, MOST_REQUEST)
        if csr is not None and request is None:
            fail(f"{csr}: No such file or directory")
        made = open_authority(directory, authority)
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in names:
            pairs = made.compute(name) if role == "compute" else [made.client(name, role, request)]
            for pair in pairs:
                _hand_out(pair, role, out)
        durable.replace_text(
            out / "ca.pem", durable.require_text(made.certificate_file, 1 << 20, "ascii")
        )
        _tell_broker(made, directory)
    except CertificateError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or out}: {error.strerror}")
    except ValueError as error:
        fail(f"{csr}: {error}")


@app.command(epilog="Example: fabric-compute certificates revoke gpu-01")
def revoke(
    names: Clients, directory: Directory = DEFAULT_DIRECTORY, authority: AuthorityDirectory = None
) -> None:
    """Shut clients out; a broker that runs here ends their connections at once."""
    try:
        made = open_authority(directory, authority)
        problems: list[str] = []
        before = set(made.revoked)
        for name in names:
            try:
                put(f"{name}: {made.revoke(name)} certificates revoked")
            except CertificateError as error:  # A slip in one name keeps no other one in.
                problems.append(str(error))
        _tell_broker(made, directory)
        gone = sorted(set(made.revoked) - before)
        if gone and (why := expel(made, BrokerFiles(directory), gone)):
            put(f"a connection that it has stays, mute, until the broker ends it: {why}")
        if problems:
            fail("; ".join(problems))
    except CertificateError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or directory}: {error.strerror}")


@app.command("list", epilog="Example: fabric-compute certificates list")
def list_(
    directory: Directory = DEFAULT_DIRECTORY,
    authority: AuthorityDirectory = None,
    as_json: Json = False,
) -> None:
    """All certificates that were issued."""
    try:
        issued = open_authority(directory, authority).issued
    except CertificateError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or directory}: {error.strerror}")
    if as_json:
        put_json([one.__dict__ for one in issued])
        return
    rows = [(x.name, x.role, x.serial, "revoked" if x.revoked else "valid") for x in issued]
    table([("name", "role", "serial", "state"), *rows])


def _hand_out(pair: Pair, role: str, out: Path) -> None:
    certificate, key = pair.write(out)
    what = f"{certificate} {key}" if key is not None else f"{certificate}"
    put(f"{role} {pair.name}: {what}, authority {out / 'ca.pem'}")


def _tell_broker(authority: Authority, directory: Path) -> None:
    if not directory.is_dir():
        put(f"no broker in {directory}: fabric-compute broker --write-only brings it what it needs")
        return
    files = BrokerFiles(directory)
    broker_files.publish(authority, files)
    broker_files.reload(files)

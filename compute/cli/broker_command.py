"""``fabric-compute broker``: certificates, configuration and access list; runs mosquitto."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import stat
from pathlib import Path
from typing import Annotated

import typer

from compute.certificates import FURTHER, Authority, CertificateError
from compute.cli.base import fail, put
from compute.mosquitto import BrokerFiles, access_list, configuration
from telemetry.listen import parse_listen
from telemetry.messages.topics import DEFAULT_PREFIX
from telemetry.service import durable

DEFAULT_DIRECTORY = Path("/var/lib/fabric-broker")
DEFAULT_LISTEN = "0.0.0.0:8883"
USER = "mosquitto"
PROGRAMS = "/usr/local/sbin:/usr/sbin:/sbin"

Names = list[str] | None


def broker(
    directory: Annotated[Path, typer.Option("--dir", help="Everything of it lies there.")] = (
        DEFAULT_DIRECTORY
    ),
    listen: Annotated[str, typer.Option(help="ADDRESS:PORT.")] = DEFAULT_LISTEN,
    name: Annotated[
        Names, typer.Option(help="A name or address in its certificate; may be given again.")
    ] = None,
    host: Annotated[Names, typer.Option(help="Issue a certificate for this host.")] = None,
    compute: Annotated[
        Names, typer.Option(help="Issue a certificate for the fabric-compute of this name.")
    ] = None,
    operator: Annotated[Names, typer.Option(help="Issue a certificate for this operator.")] = None,
    revoke: Annotated[Names, typer.Option(help="Revoke the certificates of this client.")] = None,
    write_only: Annotated[
        bool, typer.Option("--write-only", help="Write the files; run nothing.")
    ] = False,
    prefix: Annotated[str, typer.Option(help="First levels of all topics.")] = DEFAULT_PREFIX,
) -> None:
    """Run a mosquitto that only clients with certificates of this site can use.

    With --host, --compute, --operator or --revoke it changes certificates instead, and tells a
    broker that runs.
    """
    files = BrokerFiles(directory)
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        authority = Authority(directory)
        for one in host or []:
            _say(authority, "host", one, *authority.client(one, "host"))
        for one in compute or []:
            _issue_compute(authority, one)
        for one in operator or []:
            _say(authority, "operator", one, *authority.client(one, "operator"))
        for one in revoke or []:
            put(f"{one}: {authority.revoke(one)} certificates revoked")
        changed = bool(host or compute or operator or revoke)
        if not changed:
            _complete(authority)
        access = access_list(
            authority.names("compute"), authority.names("operator"), prefix, authority.revoked,
            authority.names("events"), authority.names("probe"),
        )  # fmt: skip
        durable.replace_text(files.access, access)
        if changed:
            _reload(files)
            return
        _write(files, authority, listen, name or [socket.gethostname()])
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
    os.execv(program, [program, "-c", str(files.configuration)])  # noqa: S606


def _say(authority: Authority, role: str, name: str, certificate: Path, key: Path) -> None:
    put(f"{role} {name}: {certificate} {key}, authority {authority.certificate_file}")


def _issue_compute(authority: Authority, name: str) -> None:
    for role, issued in zip(("compute", *FURTHER), authority.compute(name), strict=True):
        _say(authority, role, *issued)


def _complete(authority: Authority) -> None:
    """Issue what a fabric-compute of an older version lacks."""
    for name in authority.names("compute"):
        for purpose in FURTHER:
            one = f"{name}.{purpose}"
            if one not in authority.names(purpose):
                try:
                    _say(authority, purpose, one, *authority.client(one, purpose))
                except CertificateError as error:  # its name was long, or somebody has this one
                    put(f"{name} has no certificate for its {purpose}: {error}")


def _write(files: BrokerFiles, authority: Authority, listen: str, names: list[str]) -> None:
    """Certificate of the server, configuration, data directory."""
    address, port = parse_listen(listen)
    certificate, key = authority.server(names)
    files.data.mkdir(mode=0o700, exist_ok=True)
    user = ""
    if os.geteuid() == 0:
        # mosquitto reads its key after it has left root behind.
        uid = _uid(USER)
        user = "root" if uid is None else USER
        for path in (files.data, *files.data.iterdir(), key):
            _give(path, uid or 0)
    text = configuration(files, address, port, certificate=certificate, key=key, user=user)
    durable.replace_text(files.configuration, text)


def _give(path: Path, uid: int) -> None:
    """Make ``uid`` the owner of a file or directory. Links, soft or hard, are left as they are.

    The user mosquitto writes into the data directory: a link there may lead to a file of root's.
    """
    status = path.lstat()
    if stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1):
        os.chown(path, uid, -1, follow_symlinks=False)


def _uid(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def _reload(files: BrokerFiles) -> None:
    """Let a broker that runs read its access list and revocations again (SIGHUP)."""
    try:
        pid = int(durable.read(files.pid, 32) or b"0")
        command = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return
    if pid > 1 and command == "mosquitto":
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGHUP)

"""What a mosquitto of a site reads, written where its user can read it and change nothing.

Two directories. The authority's (``ca.key``, the register) is for root alone. The broker's has
copies of what is public, the server's pair, configuration and access list: root's, readable by the
user that mosquitto becomes, who owns ``data/`` only. So a fault in the broker gives away neither
the site nor any client.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import stat
from pathlib import Path

from compute.certificates import Authority, CertificateError
from compute.mosquitto import BrokerFiles, access_list, configuration, local_address
from telemetry.service import durable

MOST_BYTES = 16 << 20
MOVED = ("ca.pem", "crl.pem", "issued.json", "ca.key")
"""Of the authority, in the layout of older versions: in the broker's directory. The key last: an
interrupted move goes on at the next start."""
OLDER_CLIENTS = "clients-of-an-older-version"


def default_authority(directory: Path) -> Path:
    """Where the authority of a broker lies unless somebody says otherwise."""
    return directory.with_name(f"{directory.name.removesuffix('-broker')}-authority")


def identity_of(user: str) -> tuple[int, int] | None:
    """User and group id; None: there is no such user."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return None
    return entry.pw_uid, entry.pw_gid


def own(directory: Path) -> None:
    """Make a directory the caller's own, and one that others can look into where root makes it.

    From then on nobody else adds, removes or renames anything in it.
    """
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(directory, 0, 0)
        directory.chmod(0o755)


def publish(authority: Authority, files: BrokerFiles) -> None:
    """Bring what changes with certificates into the broker's directory. Raises ``OSError``."""
    for source in (authority.certificate_file, authority.revocations_file):
        durable.replace_text(
            files.directory / source.name, durable.require_text(source, MOST_BYTES, "ascii")
        )
    access = access_list(
        authority.names("compute"), authority.names("operator"), authority.site.prefix,
        authority.revoked, authority.names("events"), authority.names("probe"),
    )  # fmt: skip
    _write_for(files, files.access, access)


def prepare(
    authority: Authority, files: BrokerFiles, address: str, port: int, user: str, memory_mib: int
) -> None:
    """Write all of a broker's files. ``user``: whom it becomes where root starts it.

    Raises ``OSError`` and ``CertificateError``.
    """
    files.data.mkdir(mode=0o700, exist_ok=True)
    if not stat.S_ISDIR(files.data.lstat().st_mode):
        raise CertificateError(f"{files.data}: no directory")
    becomes = ""
    if os.geteuid() == 0:
        ids = identity_of(user)
        becomes = "root" if ids is None else user
        for path in (files.data, *files.data.iterdir()):
            give(path, *(ids or (0, 0)))
    # The broker's own client finds it where it listens, whatever others call it.
    server = authority.server((*authority.site.names, local_address(address)))
    certificate, key = files.directory / "server.pem", files.directory / "server.key"
    _write_for(files, key, server.key)
    durable.replace_text(certificate, server.certificate)
    keeper = authority.keeper()
    _write_for(files, files.keeper_key, keeper.key)
    durable.replace_text(files.keeper_certificate, keeper.certificate)
    publish(authority, files)
    text = configuration(
        files, address, port, certificate=certificate, key=key, user=becomes, memory_mib=memory_mib
    )
    durable.replace_text(files.configuration, text)


def _write_for(files: BrokerFiles, path: Path, text: str) -> None:
    """Write a file that the broker's user may read and others may not."""
    if os.geteuid() != 0:
        durable.replace_text(path, text, 0o600)
        return
    durable.replace_text(path, text, 0o640)
    with contextlib.suppress(FileNotFoundError):  # `prepare` will do it
        os.chown(path, 0, files.data.lstat().st_gid, follow_symlinks=False)


def give(path: Path, uid: int, gid: int) -> None:
    """Make somebody the owner of a file or directory. Links, soft or hard, are left as they are.

    The user mosquitto writes into the data directory: a link there may lead to a file of root's.
    """
    status = path.lstat()
    if stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1):
        os.chown(path, uid, gid, follow_symlinks=False)


def is_older(directory: Path) -> bool:
    """Whether the authority's key lies in the broker's directory, as older versions had it."""
    return (directory / "ca.key").is_file()


def move_older(directory: Path, authority: Path) -> list[str]:
    """Move an authority out of the broker's directory, which is the caller's own (`own`).

    Returns:
        What was done, in words.

    Raises:
        CertificateError: it cannot be moved as it is; nothing is lost.
        OSError: likewise.
    """
    if (authority / "ca.key").exists():
        raise CertificateError(
            f"there is an authority in {directory}, as older versions had it, and another in "
            f"{authority}: take one of them away"
        )
    authority.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority.chmod(0o700)
    clients = directory / "clients"
    kept = sorted(clients.iterdir()) if clients.is_dir() and not clients.is_symlink() else []
    if kept:
        (authority / OLDER_CLIENTS).mkdir(mode=0o700, exist_ok=True)
    for path in kept:
        _move(path, authority / OLDER_CLIENTS / path.name)
    if kept:
        clients.rmdir()
    for name in MOVED:
        if (directory / name).exists():
            _move(directory / name, authority / name)
    said = [
        f"moved the authority from {directory} to {authority}: the broker's user could read its key"
    ]
    if kept:
        said.append(
            f"moved {len(kept)} files of clients to {authority / OLDER_CLIENTS}: remove them once "
            "each is at its host; from now on keys are handed out and not kept"
        )
    return said


def _move(path: Path, to: Path) -> None:
    """Move a regular file with no other name; anything else is refused, a link above all."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123 - of a descriptor
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise CertificateError(f"{path}: no regular file, or one with several names")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES or not content.isascii():
        raise CertificateError(f"{path}: no file of an authority")
    durable.replace_text(to, content.decode("ascii"), 0o600)
    path.unlink()


def reload(files: BrokerFiles) -> None:
    """Let a broker that runs read its access list and revocations again (SIGHUP)."""
    try:
        pid = int(durable.read(files.pid, 32) or b"0")
        process = Path(f"/proc/{pid}")
        command = durable.require_text(process / "comm", MOST_BYTES).strip()
        its_own = process.stat().st_uid == files.data.lstat().st_uid
    except (OSError, ValueError):
        return
    if pid > 1 and command == "mosquitto" and its_own:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGHUP)

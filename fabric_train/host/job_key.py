"""A job's key: what its own fabric-runs know, and nobody else. Pure but for ``read_key``.

Its hash is part of the job's identity at fabric-compute, so what a stranger says of the job's name
is said of another job. Each fabric-run seals who it is and where it listens; a fabric-run with a
key starts no generation that names a member without the job's seal, whoever orders it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
import sys
from pathlib import Path

from fabric_train.messages.documents import Member

VARIABLE = "FABRIC_TRAIN_KEY_FILE"
LEAST_BYTES, MOST_BYTES = 16, 4096
SEAL_DIGITS = 32


class KeyFileError(Exception):
    """There is no key. The text names the file, and what is wrong with it."""


class JobKey:
    """The key of one job."""

    def __init__(self, job: str, secret: bytes) -> None:
        self.id = hashlib.sha256(b"fabric_train job key\0" + secret).hexdigest()
        self._job, self._secret = job, secret

    def __repr__(self) -> str:
        return f"JobKey({self._job!r})"

    def seal(self, host: str, incarnation: str, address: str, store: str, token: str) -> str:
        """That of a fabric-run: the fields of its document, and of its `Member`."""
        said = [self._job, host, incarnation, address, store, token]
        found = hmac.new(self._secret, json.dumps(said).encode(), hashlib.sha256)
        return found.hexdigest()[:SEAL_DIGITS]

    def is_sealed(self, member: Member) -> bool:
        """Whether somebody who has the key said all of that."""
        seal = self.seal(
            member.host, member.incarnation, member.address, member.store, member.token
        )
        return hmac.compare_digest(seal.encode(), member.seal.encode(errors="replace"))


def read_key(job: str, file: str) -> JobKey:
    """Read it from a file of ours, a pipe, or ``-``, standard input. Raises ``KeyFileError``."""
    try:
        if file == "-":
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                _check(file, os.fstat(opened.fileno()))
                data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"{file}: {error.strerror or error}") from None
    secret = data.strip()
    if len(secret) < LEAST_BYTES or len(data) > MOST_BYTES:
        raise KeyFileError(f"{file}: a key has {LEAST_BYTES} to {MOST_BYTES} bytes")
    return JobKey(job, secret)


def _check(file: str, status: os.stat_result) -> None:
    if stat.S_ISFIFO(status.st_mode):
        return
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(f"{file}: no regular file and no pipe")
    if status.st_uid not in (0, os.geteuid()):
        raise KeyFileError(f"{file}: belongs to uid {status.st_uid}")
    if status.st_mode & 0o077:
        raise KeyFileError(f"{file}: others may read it; chmod 600 {file}")

"""Probe key files: one key of 64 hexadecimal digits a line; the first signs, all are accepted.

A rotation in three steps, each over all hosts, loses no probe: ``add`` (everybody accepts the new
key), ``use`` (the new one signs), ``drop`` (the old one is no longer accepted). Until its ``drop``
a file in rotation says in a comment how far it is: a step that is repeated, or left out, would
leave a host alone with a key that nobody else has.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from pathlib import Path

KEY_BYTES = 32
MAX_KEYS = 8
ADDED, USED = "# rotation: the last key is new", "# rotation: the first key is new"


class KeyFileError(Exception):
    """The file cannot be used; the text never contains a key."""


def parse(text: str) -> list[bytes]:
    """The keys of a file's text, as the prober reads it.

    Raises:
        KeyFileError: a line that is no key, or none at all.
    """
    keys = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        if not re.fullmatch(r"[0-9a-fA-F]{64}", line):
            raise KeyFileError(f"line {number}: a key is 64 hexadecimal digits")
        keys.append(bytes.fromhex(line))
    if not keys:
        raise KeyFileError("no key in it")
    return keys


def read(path: Path) -> str:
    """The text of a key file, after it was looked at.

    Raises:
        KeyFileError: cannot be read, is no such file, or is open to others than its owner.
    """
    try:
        with path.open(encoding="ascii") as file:
            if (mode := stat.S_IMODE(os.fstat(file.fileno()).st_mode)) & 0o077:
                raise KeyFileError(f"{path}: mode {mode:04o}; allowed: its owner alone (chmod 600)")
            text = file.read(65536)
        parse(text)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise KeyFileError(f"{path}: not a text") from None
    except KeyFileError as error:
        if str(error).startswith(str(path)):
            raise
        raise KeyFileError(f"{path}: {error}") from None
    return text


def fingerprint(key: bytes) -> str:
    """Eight digits that tell keys apart and tell nothing of them: to compare hosts."""
    return hashlib.blake2s(key, digest_size=4, person=b"fabkeyfp").hexdigest()


def step(text: str, what: str, new: str = "") -> str:
    """The next file of a rotation.

    Args:
        text: the present file's; one written by hand, without a comment about it, is believed.
        what: ``add``, ``use`` or ``drop``.
        new: for ``add``: the key; "": a fresh one.

    Raises:
        KeyFileError: not possible with this file.
    """
    keys = [key.hex() for key in parse(text)]
    mark = next((line for line in text.splitlines() if line in (ADDED, USED)), "")
    if what == "add":
        if mark:
            raise KeyFileError("a rotation is under way: finish it (use, drop) first")
        added = parse(new)[0].hex() if new else secrets.token_hex(KEY_BYTES)
        if added in keys:
            raise KeyFileError("that key is in it already")
        if len(keys) >= MAX_KEYS:
            raise KeyFileError(f"{len(keys)} keys already: drop the old ones first")
        keys.append(added)
        mark = ADDED
    elif what == "use":
        if len(keys) < 2:
            raise KeyFileError("there is one key only: add the new one first")
        if mark == USED:
            raise KeyFileError("the new key signs already: drop the old one")
        keys = [keys[-1], *keys[:-1]]
        mark = USED
    elif what == "drop":
        if len(keys) < 2:
            raise KeyFileError("there is one key only")
        if mark == ADDED:
            raise KeyFileError("the old key signs still, and would stay: use the new one first")
        keys = keys[:1]
        mark = ""
    else:
        raise KeyFileError(f"{what}: allowed are add, use, drop")
    return "\n".join([mark, *keys] if mark else keys) + "\n"

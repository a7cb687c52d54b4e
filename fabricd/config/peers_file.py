"""Reads ``peers_file``: ``[[peers]]`` tables that all hosts share, in a file of their own.

Other programs replace the file at any time, so one read is of one version of it, and `FileState`
says of which.
"""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from telemetry.service.config_errors import Problem, syntax_problem
from telemetry.service.toml_lines import key_lines, line_of
from telemetry.service.toml_text import read_toml

MAX_BYTES = 64 << 20
"""The largest list that is allowed (4096 hosts of 64 addresses) has some 20 MB."""
READS = 3


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells one version of a file from the next; ``error``: it cannot be read."""

    device: int = 0
    inode: int = 0
    size: int = 0
    modified_ns: int = 0
    changed_ns: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class PeersFile:
    """One version of the file.

    Attributes:
        name: its path.
        text: all of it; empty when it cannot be used.
        peers: its ``[[peers]]``, not validated.
        problems: why it cannot be used; empty: it can.
        state: of the version that was read.
    """

    name: str
    text: str
    peers: tuple[dict[str, Any], ...]
    problems: tuple[Problem, ...]
    state: FileState


def file_state(path: str) -> FileState:
    """Of the file that is there now, links followed."""
    try:
        return _state(Path(path).stat())
    except OSError as error:
        return FileState(error=error.strerror or str(error))


def read_peers_file(path: str) -> PeersFile:
    """Read the file once and parse it; its entries are validated by the caller."""
    try:
        data, state = _read(path)
    except OSError as error:
        what = error.strerror or str(error)
        return _unusable(path, FileState(error=what), f"cannot be read: {what}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        return _unusable(path, state, "not UTF-8; allowed: a TOML file in UTF-8", line)
    try:
        raw = read_toml(text)
    except tomllib.TOMLDecodeError as error:
        return PeersFile(path, text, (), (syntax_problem(str(error), text, path),), state)
    peers = raw.pop("peers", [])
    problems = []
    if raw:
        problems += [(key, "unknown key; allowed in this file: peers") for key in raw]
    if not isinstance(peers, list) or not all(isinstance(entry, dict) for entry in peers):
        problems.append(("peers", "no list of tables; allowed: tables [[peers]]"))
    if problems:
        lines = key_lines(text)
        found = tuple(Problem(path, line_of(lines, (key,)), key, what) for key, what in problems)
        return PeersFile(path, text, (), found, state)
    return PeersFile(path, text, tuple(peers), (), state)


def _unusable(path: str, state: FileState, what: str, line: int = 0) -> PeersFile:
    return PeersFile(path, "", (), (Problem(path, line, "(file)", what),), state)


def _state(found: os.stat_result) -> FileState:
    return FileState(
        found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )


def _read(path: str) -> tuple[bytes, FileState]:
    """All bytes of one version. Raises ``OSError``."""
    # A pipe would have its reader wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb", buffering=0) as file:
        for _ in range(READS):
            before = os.fstat(fd)
            if not stat.S_ISREG(before.st_mode):
                raise OSError(None, "not a regular file")
            if before.st_size > MAX_BYTES:
                raise OSError(None, f"larger than {MAX_BYTES >> 20} MiB")
            file.seek(0)
            data = file.read(MAX_BYTES + 1)
            after = os.fstat(fd)
            if _state(before) == _state(after) and len(data or b"") == after.st_size:
                return data or b"", _state(after)
    raise OSError(None, "changes while it is read")

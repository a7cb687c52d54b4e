"""Talks to the daemon's control socket: one request, one answer, or a stream of events."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMEOUT_S = 10.0
LOOK_S = 0.5
"""While there is no answer it is looked so often whether the daemon's process is stopped."""
MAX_ANSWER = 256 * 1024 * 1024
"""Bytes of one line: the longest timeline is some 50 MB."""
TOO_LONG = "the daemon's answer is longer than any of its answers"


class DaemonError(Exception):
    """The daemon is not reachable, or says that it cannot do this."""


class UnreachableError(DaemonError):
    """The daemon is not reachable, or does not answer: nothing is known of it."""


def request(
    path: Path,
    document: dict[str, Any],
    *,
    limit_s: float | None = None,
    silence_s: float = TIMEOUT_S,
) -> Any:  # noqa: ANN401 - a JSON value
    """Send one request and return its ``data``.

    Args:
        path: of the socket.
        document: the request.
        limit_s: seconds for the whole answer; None: ``silence_s`` between any two parts of it.
        silence_s: seconds.

    Raises:
        UnreachableError: no daemon is there, or none answers. A stopped one is told apart at once.
        DaemonError: with a text for the operator.
    """
    end = None if limit_s is None else time.monotonic() + limit_s
    with _connect(path) as connection:
        try:
            connection.settimeout(_left(end, silence_s))
            _send(connection, document)
            return _answer(_line(connection, end, silence_s))
        except TimeoutError:
            waited = silence_s if limit_s is None else max(0.0, limit_s)
            text = f"{path}: no answer within {waited:g} s (is fabricd stopped, or starved?)"
            raise UnreachableError(text) from None


def _left(end: float | None, silence_s: float) -> float:
    """Seconds until ``end`` (monotonic).

    Raises:
        TimeoutError: it has passed.
    """
    left = silence_s if end is None else end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _receive(connection: socket.socket, left_s: float) -> bytes:
    """The next bytes, waited for ``left_s``; a daemon that is stopped is not waited for.

    Raises:
        TimeoutError: none came.
        UnreachableError: the daemon's process is stopped.
    """
    end = time.monotonic() + left_s
    while True:
        left = end - time.monotonic()
        connection.settimeout(max(0.001, min(left, LOOK_S)))
        try:
            return connection.recv(65536)
        except TimeoutError:
            if pid := _stopped(connection):
                text = f"fabricd (process {pid}) is stopped by a signal: kill -CONT {pid}"
                raise UnreachableError(text) from None
            if left <= LOOK_S:
                raise


def _stopped(connection: socket.socket) -> int:
    """Process id of the daemon where it is stopped (SIGSTOP, or a debugger); else 0."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = int(struct.unpack("3i", raw)[0])
    try:
        with Path(f"/proc/{pid}/stat").open("rb") as file:
            words = file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return 0
    return pid if words[:1] in ([b"T"], [b"t"]) else 0


def _line(connection: socket.socket, end: float | None, silence_s: float) -> bytes:
    parts, size = [], 0
    while True:
        part = _receive(connection, _left(end, silence_s))
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER:
            raise DaemonError(TOO_LONG)
        if not part or part.endswith(b"\n"):
            return b"".join(parts)


def stream(
    path: Path, document: dict[str, Any], *, pause_s: float | None = None
) -> Iterator[dict[str, Any] | None]:
    """Send one request and yield what follows its answer, until the daemon closes.

    Args:
        path: of the socket.
        document: the request.
        pause_s: yield None whenever nothing came for so long; None: never.

    Raises:
        DaemonError: refused, or the connection ended.
    """
    with _connect(path) as connection:
        _send(connection, document)
        lines = _lines(connection)
        _answer(next(lines, None) or b"")
        connection.settimeout(pause_s)
        for line in lines:
            yield None if line is None else json.loads(line)
    raise DaemonError("the daemon closed the connection")


def _lines(connection: socket.socket) -> Iterator[bytes | None]:
    """Each line; None: none was whole when the connection's timeout ran out.

    Raises:
        DaemonError: a line is longer than any that a daemon sends.
    """
    left = bytearray()
    while True:
        try:
            part = connection.recv(65536)
        except TimeoutError:
            yield None
            continue
        if not part:
            return
        left += part
        if b"\n" in part:
            *whole, rest = bytes(left).split(b"\n")
            left = bytearray(rest)
            if max(map(len, whole)) > MAX_ANSWER:
                raise DaemonError(TOO_LONG)
            yield from whole
        if len(left) > MAX_ANSWER:
            raise DaemonError(TOO_LONG)


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The kernel serves those who wait in order; with a timeout of Python's nobody waits at all.
        limit = struct.pack("ll", int(TIMEOUT_S), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connection.connect(str(path))
        connection.settimeout(TIMEOUT_S)
    except BlockingIOError:
        connection.close()
        text = f"{path}: no connection within {TIMEOUT_S:g} s (is fabricd stopped, or flooded?)"
        raise UnreachableError(text) from None
    except OSError as error:
        connection.close()
        hint = ""
        if isinstance(error, PermissionError):
            hint = " (root or the group fabricd may)"
        elif isinstance(error, FileNotFoundError | ConnectionRefusedError):
            hint = " (is fabricd running? systemctl status fabricd)"
        raise UnreachableError(f"{path}: {error.strerror}{hint}") from error
    return connection


def _send(connection: socket.socket, document: dict[str, Any]) -> None:
    # A daemon that is busy says so and closes before it reads.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(json.dumps(document).encode() + b"\n")


def _answer(line: bytes) -> Any:  # noqa: ANN401
    if not line:
        raise UnreachableError("the daemon closed the connection without an answer")
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise DaemonError("the answer is not JSON") from error
    if not isinstance(answer, dict) or not answer.get("ok"):
        text = answer.get("error") if isinstance(answer, dict) else None
        raise DaemonError(str(text or "refused without a reason"))
    return answer.get("data")

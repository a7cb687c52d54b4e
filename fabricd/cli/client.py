"""Talks to the daemon's control socket: one request, one answer, or a stream of events."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

TIMEOUT_S = 10.0
MAX_ANSWER = 256 * 1024 * 1024
"""Bytes of one line: the longest timeline is some 50 MB."""
TOO_LONG = "the daemon's answer is longer than any of its answers"


class DaemonError(Exception):
    """The daemon is not reachable, or says that it cannot do this."""


def request(path: Path, document: dict[str, Any], *, limit_s: float | None = None) -> Any:  # noqa: ANN401 - a JSON value
    """Send one request and return its ``data``.

    Args:
        path: of the socket.
        document: the request.
        limit_s: seconds for the whole answer; None: `TIMEOUT_S` between any two parts of it.

    Raises:
        DaemonError: with a text for the operator.
    """
    end = None if limit_s is None else time.monotonic() + limit_s
    with _connect(path) as connection:
        try:
            connection.settimeout(_left(end))
            _send(connection, document)
            return _answer(_line(connection, end))
        except TimeoutError:
            waited = TIMEOUT_S if limit_s is None else max(0.0, limit_s)
            text = f"{path}: no answer within {waited:g} s (is fabricd stopped, or starved?)"
            raise DaemonError(text) from None


def _left(end: float | None) -> float:
    """Seconds until ``end`` (monotonic).

    Raises:
        TimeoutError: it has passed.
    """
    left = TIMEOUT_S if end is None else end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _line(connection: socket.socket, end: float | None) -> bytes:
    parts, size = [], 0
    while True:
        connection.settimeout(_left(end))
        part = connection.recv(65536)
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER:
            raise DaemonError(TOO_LONG)
        if not part or part.endswith(b"\n"):
            return b"".join(parts)


def stream(path: Path, document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Send one request and yield what follows its answer, until the daemon closes.

    Raises:
        DaemonError: refused, or the connection ended.
    """
    with _connect(path) as connection, connection.makefile("rb") as lines:
        _send(connection, document)
        _answer(_limited(lines))
        connection.settimeout(None)
        while line := _limited(lines):
            yield json.loads(line)
    raise DaemonError("the daemon closed the connection")


def _limited(lines: BinaryIO) -> bytes:
    """The next line."""
    line = lines.readline(MAX_ANSWER + 1)
    if len(line) > MAX_ANSWER:
        raise DaemonError(TOO_LONG)
    return line


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
        raise DaemonError(text) from None
    except OSError as error:
        connection.close()
        hint = ""
        if isinstance(error, PermissionError):
            hint = " (root or the group fabricd may)"
        elif isinstance(error, FileNotFoundError | ConnectionRefusedError):
            hint = " (is fabricd running? systemctl status fabricd)"
        raise DaemonError(f"{path}: {error.strerror}{hint}") from error
    return connection


def _send(connection: socket.socket, document: dict[str, Any]) -> None:
    # A daemon that is busy says so and closes before it reads.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(json.dumps(document).encode() + b"\n")


def _answer(line: bytes) -> Any:  # noqa: ANN401
    if not line:
        raise DaemonError("the daemon closed the connection without an answer")
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise DaemonError("the answer is not JSON") from error
    if not isinstance(answer, dict) or not answer.get("ok"):
        text = answer.get("error") if isinstance(answer, dict) else None
        raise DaemonError(str(text or "refused without a reason"))
    return answer.get("data")

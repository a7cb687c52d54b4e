"""Talks to the daemon's control socket: one request, one answer, or a stream of events."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMEOUT_S = 10.0


class DaemonError(Exception):
    """The daemon is not reachable, or says that it cannot do this."""


def request(path: Path, document: dict[str, Any]) -> Any:  # noqa: ANN401 - a JSON value
    """Send one request and return its ``data``.

    Raises:
        DaemonError: with a text for the operator.
    """
    with _connect(path) as connection, connection.makefile("rb") as lines:
        try:
            return _answer(_send(connection, document) or lines.readline())
        except TimeoutError:
            text = f"{path}: no answer within {TIMEOUT_S:g} s (is fabricd stopped, or starved?)"
            raise DaemonError(text) from None


def stream(path: Path, document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Send one request and yield what follows its answer, until the daemon closes.

    Raises:
        DaemonError: refused, or the connection ended.
    """
    with _connect(path) as connection, connection.makefile("rb") as lines:
        _send(connection, document)
        _answer(lines.readline())
        connection.settimeout(None)
        for line in lines:
            yield json.loads(line)
    raise DaemonError("the daemon closed the connection")


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(TIMEOUT_S)
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        hint = ""
        if isinstance(error, PermissionError):
            hint = " (root or the group fabricd may)"
        elif isinstance(error, FileNotFoundError | ConnectionRefusedError):
            hint = " (is fabricd running? systemctl status fabricd)"
        raise DaemonError(f"{path}: {error.strerror}{hint}") from error
    return connection


def _send(connection: socket.socket, document: dict[str, Any]) -> bytes:
    connection.sendall(json.dumps(document).encode() + b"\n")
    return b""


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

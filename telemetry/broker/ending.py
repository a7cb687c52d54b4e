"""How a connection to the broker ends, and why one was not made."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import Any

import aiomqtt

from telemetry.broker.library_hooks import retrieved
from telemetry.broker.socket_hooks import closed_by_broker

ABSENT = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH})


async def disconnect(client: aiomqtt.Client, *, politely: bool) -> None:
    """End a connection; ``politely`` with DISCONNECT, so that the broker drops the last will."""
    if politely:
        with contextlib.suppress(aiomqtt.MqttError, OSError):
            async with closed_by_broker(client):
                await client.__aexit__(None, None, None)
    _close(client)


def discard(client: aiomqtt.Client, entering: asyncio.Future[Any]) -> None:
    """Give up a connection that is being made."""
    retrieved(entering)
    _close(client)


def _close(client: aiomqtt.Client) -> None:
    """Close the socket of a connection that failed: aiomqtt leaves it open."""
    client._client._sock_close()  # noqa: SLF001


def is_absent(error: BaseException) -> bool:
    """No broker is at that address: not one that is slow."""
    inner = error.__context__ if isinstance(error, aiomqtt.MqttError) else error
    return isinstance(inner, OSError) and inner.errno in ABSENT


def reason_of(error: BaseException) -> str:
    """In words, with what lies behind it."""
    text = str(error) or type(error).__name__
    if isinstance(error, aiomqtt.MqttError) and isinstance(error.__cause__, Exception):
        text = f"{text}: {error.__cause__}"
    return text[:300]

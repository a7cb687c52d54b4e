"""Takes from paho what aiomqtt drops: limits of the CONNACK, and why a PUBLISH was refused.

Also applies the limits: paho counts messages in flight without the broker's Receive Maximum, and
takes over the broker's keepalive. A longer one, or none, would leave a dead connection unnoticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import aiomqtt
from aiomqtt.exceptions import MqttConnectError

from telemetry.broker.limits import MOST_IN_FLIGHT, BrokerLimits, unusable


def hook(
    client: aiomqtt.Client,
    keepalive_s: int,
    announced: Callable[[BrokerLimits], None],
    rejected: Callable[[str, str], None],
) -> None:
    """Install the hooks, before the client connects.

    Args:
        client: made on the loop that is to run it.
        keepalive_s: that it asks for.
        announced: is called at the CONNACK.
        rejected: is called with the topic's name and the reason of a PUBLISH that was refused.
    """
    paho = cast("Any", client._client)  # noqa: SLF001 - see the module
    names: dict[int, str] = {}
    connected, published, publish = paho.on_connect, paho.on_publish, paho.publish

    def on_connect(*arguments: Any) -> None:  # noqa: ANN401 - paho's callback
        limits = BrokerLimits.of_connack(arguments[4])
        paho._max_inflight_messages = min(MOST_IN_FLIGHT, limits.in_flight)  # noqa: SLF001
        paho._keepalive = limits.keepalive(keepalive_s)  # noqa: SLF001
        announced(limits)
        connected(*arguments)

    def noted_publish(topic: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        info = publish(topic, *arguments, **named)
        names[info.mid] = topic
        return info

    def on_publish(*arguments: Any) -> None:  # noqa: ANN401
        name, code = names.pop(arguments[2], ""), arguments[3]
        if code.is_failure:
            rejected(name, str(code))
        published(*arguments)

    paho.on_connect, paho.on_publish, paho.publish = on_connect, on_publish, noted_publish


def refused_connection(error: BaseException) -> str:
    """Why a broker's limits refused the CONNECT; "": it failed for another reason."""
    if not isinstance(error, MqttConnectError):
        return ""
    code: Any = error.rc
    return unusable(int(getattr(code, "value", code)))


def end_is_known(client: aiomqtt.Client) -> None:
    """Whoever does not wait for the end of a connection does not miss its reason."""
    client._disconnected.add_done_callback(retrieved)  # noqa: SLF001


def retrieved(future: asyncio.Future[Any]) -> None:
    """No warning follows if nobody asks for its exception."""
    if not future.cancelled():
        future.exception()

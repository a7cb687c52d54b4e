"""One message to the broker, from a command: connect, publish, go. No birth, no last will."""

from __future__ import annotations

import asyncio

import aiomqtt

from telemetry.broker.settings import BrokerSettings, plain_address
from telemetry.broker.tls import tls_context
from telemetry.messages.topics import Topic


async def publish_once(
    settings: BrokerSettings, client_id: str, topic: Topic, payload: bytes, timeout_s: float
) -> None:
    """Publish with QoS 1 and wait for the acknowledgement.

    Raises:
        OSError: not connected, refused (MQTT 5), or no answer within ``timeout_s``.
        BrokerSettingsError: the settings cannot be used.
    """
    host, context = settings.host, None
    if settings.tls:
        context = await asyncio.to_thread(tls_context, settings)
    else:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, settings.effective_port)
        host = plain_address(host, [str(item[4][0]) for item in found])[0]
    five = settings.protocol == "5"
    client = aiomqtt.Client(
        host,
        settings.effective_port,
        username=settings.username or None,
        password=settings.password(),
        identifier=client_id,
        protocol=aiomqtt.ProtocolVersion.V5 if five else aiomqtt.ProtocolVersion.V311,
        timeout=timeout_s,
        tls_context=context,
    )
    refused: list[str] = []
    paho = client._client  # noqa: SLF001 - aiomqtt drops the reason codes of PUBACKs
    inner = paho.on_publish

    def published(*arguments: object) -> None:
        if getattr(arguments[3], "is_failure", False):
            refused.append(str(arguments[3]))
        if inner is not None:
            inner(*arguments)  # type: ignore[arg-type]

    paho.on_publish = published
    try:
        async with asyncio.timeout(timeout_s), client:
            await client.publish(
                topic.text(settings.prefix), payload, qos=1, retain=topic.kind.retained
            )
    except aiomqtt.MqttError as error:
        raise OSError(str(error)) from None
    except TimeoutError:
        raise OSError(f"no answer within {timeout_s:g} s") from None
    finally:
        paho._sock_close()  # noqa: SLF001 - aiomqtt leaves it open when it cannot connect
    if refused:
        raise OSError(f"refused: {refused[0]}")

"""Whether the broker knows a client by its certificate, or by the client id that it claims.

MQTT knows clients by their id. A broker that lets a certificate claim any id lets each host take
any other client off: the second connection of an id ends the first one, and publishes its last
will.

Two connections with one certificate, made for this alone, claim two ids. Where ids come from
certificates, the second ends the first, or the broker refuses an id that is not the certificate's
name.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from contextlib import AsyncExitStack
from pathlib import Path

import aiomqtt
import structlog

from telemetry.broker.library_hooks import end_is_known
from telemetry.broker.settings import BrokerSettings, BrokerSettingsError
from telemetry.broker.tls import tls_context

EVENTS, PROBE = "events", "probe"
"""What further certificates of a fabric-compute are for: ``NAME.events`` and ``NAME.probe``."""
ANSWER_S = 10.0
"""For each connection."""
AGAIN_S, SETTLED_S = 60.0, 3600.0
"""Until the next look: without an answer, and with one."""
REFUSED_IDS = frozenset({0x85, 0x87, 2, 5})
"""CONNACK codes: client identifier not valid, not authorized; MQTT 5 and 3.1.1."""


def beside(settings: BrokerSettings, purpose: str) -> BrokerSettings | None:
    """Settings with the certificate of another purpose.

    It lies beside the main one: ``c0.pem`` and ``c0.key``, ``c0.events.pem`` and ``c0.events.key``.
    None: there is no such pair of files.
    """
    if settings.cert_file is None or settings.key_file is None:
        return None
    pair = [_named(file, purpose) for file in (settings.cert_file, settings.key_file)]
    if not all(file.is_file() for file in pair):
        return None
    return dataclasses.replace(settings, cert_file=pair[0], key_file=pair[1])


def _named(file: Path, purpose: str) -> Path:
    return file.with_name(f"{file.stem}.{purpose}{file.suffix}")


class IdentityProbe:
    """Looks at the broker from time to time.

    Attributes:
        bound: client ids come from certificates. None: not known, there is no certificate for it or
            no broker.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self.bound: bool | None = None
        self._settings, self._log = settings, structlog.get_logger()

    async def run(self) -> None:
        """Until cancelled."""
        if self._settings.cert_file is not None and beside(self._settings, EVENTS) is None:
            self._log.warning(
                "events share the certificate of this fabric-compute: fabric-compute certificates "
                "issue NAME --role compute makes one for them; bring it beside the other",
                cert_file=str(self._settings.cert_file),
            )
        while True:
            settings = beside(self._settings, PROBE)
            found = None if settings is None else await ids_are_bound(settings)
            if found is not None:
                if found != self.bound and not found:
                    self._log.error(
                        "the broker lets a certificate claim any client id: each host can take any "
                        "other client off it; bind client ids to certificates (mosquitto: "
                        "use_username_as_clientid)"
                    )
                self.bound = found
            await asyncio.sleep(AGAIN_S if found is None else SETTLED_S)


async def ids_are_bound(settings: BrokerSettings) -> bool | None:
    """Ask the broker of these settings, whose certificate nobody else uses. None: no answer."""
    try:
        context = await asyncio.to_thread(tls_context, settings)
        password = settings.password()
    except BrokerSettingsError:
        return None
    five = settings.protocol == "5"
    clients = [
        aiomqtt.Client(
            settings.host, settings.effective_port, timeout=ANSWER_S, tls_context=context,
            username=settings.username or None, password=password,
            identifier=f"fabric-probe.{secrets.token_hex(8)}",
            protocol=aiomqtt.ProtocolVersion.V5 if five else aiomqtt.ProtocolVersion.V311,
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        async with AsyncExitStack() as stack, asyncio.timeout(3 * ANSWER_S):
            for client in clients:
                end_is_known(client)
                await stack.enter_async_context(client)
            return await _was_ended(clients[0], settings.prefix)
    except aiomqtt.MqttCodeError as error:
        code = getattr(error.rc, "value", error.rc)
        return True if code in REFUSED_IDS else None
    except (aiomqtt.MqttError, OSError, TimeoutError):
        return None
    finally:
        for client in clients:
            client._client._sock_close()  # noqa: SLF001 - aiomqtt leaves it open when it cannot connect


async def _was_ended(first: aiomqtt.Client, prefix: str) -> bool:
    """Whether the broker ended a connection, now that the second one is there."""
    try:
        await first.subscribe(f"{prefix}/stop", qos=0)
    except aiomqtt.MqttError:
        return True
    return False

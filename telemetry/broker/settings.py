"""Where the broker is, and how to prove to it who we are. Opens nothing."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from telemetry.messages.topics import DEFAULT_PREFIX

TLS_PORT, PLAIN_PORT = 8883, 1883
MAX_PASSWORD_BYTES = 4096
_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)


class BrokerSettingsError(Exception):
    """The settings cannot be used. The text names the file or address, and what is wrong."""


@dataclass(frozen=True)
class BrokerSettings:
    """How to reach the broker.

    ``protocol`` is "3.1.1" or "5". ``ca_file`` turns TLS on. ``keepalive_s``: the broker sends the
    last will when it hears nothing for 1.5 times as long.
    """

    host: str
    port: int = 0
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    username: str = ""
    password_file: Path | None = None
    prefix: str = DEFAULT_PREFIX
    protocol: str = "5"
    keepalive_s: int = 5

    @property
    def tls(self) -> bool:
        """The connection is encrypted, and the broker's certificate is verified."""
        return self.ca_file is not None

    @property
    def effective_port(self) -> int:
        """``port``, or the standard port of MQTT with or without TLS when it is 0."""
        return self.port or (TLS_PORT if self.tls else PLAIN_PORT)

    def password(self) -> str | None:
        """The first line of ``password_file``. Raises ``BrokerSettingsError``."""
        if self.password_file is None:
            return None
        try:
            with self.password_file.open("rb") as file:
                content = file.read(MAX_PASSWORD_BYTES + 1)
        except OSError as error:
            raise BrokerSettingsError(f"{self.password_file}: {error.strerror}") from None
        line = content.split(b"\n", 1)[0].rstrip(b"\r")
        if not line or len(content) > MAX_PASSWORD_BYTES:
            raise BrokerSettingsError(
                f"{self.password_file}: no password of 1 to {MAX_PASSWORD_BYTES} bytes in line 1"
            )
        try:
            return line.decode()
        except UnicodeDecodeError:
            raise BrokerSettingsError(f"{self.password_file}: line 1 is not UTF-8") from None


def needs_tls(address: str) -> bool:
    """Whether an IP address is one that other networks can reach, so that plain text is refused.

    False for loopback, link-local, RFC 1918 and unique local (RFC 4193) addresses.
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    parsed = mapped or parsed
    if parsed.is_loopback or parsed.is_link_local:
        return False
    return not any(parsed in network for network in _PRIVATE if network.version == parsed.version)


def plain_address(host: str, addresses: Iterable[str]) -> list[str]:
    """The addresses of ``host`` for a connection without TLS.

    Raises ``BrokerSettingsError`` when one of them needs TLS: a name that resolves to a public
    address is refused as a whole, whatever address would be tried first.
    """
    found = list(dict.fromkeys(addresses))
    for address in found:
        if needs_tls(address):
            where = host if host == address else f"{host} ({address})"
            raise BrokerSettingsError(
                f"broker {where} is not on a loopback or private address: set ca_file for TLS"
            )
    if not found:
        raise BrokerSettingsError(f"broker {host} has no address")
    return found

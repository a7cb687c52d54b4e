"""The plain values of the configuration: their types, and what is allowed, in words."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import BeforeValidator, Field

from fabricd.config.addresses import (
    Address,
    is_link_local,
    is_one_host,
    parse_address,
    without_zone,
)
from fabricd.config.netdev_names import is_netdev_name
from fabricd.operate.detectors import DETECTORS
from fabricd.process.cpu_affinity import parse_cpus
from telemetry.service.config_values import FilePath as FilePath
from telemetry.service.config_values import HostName as HostName
from telemetry.service.config_values import Number as Number
from telemetry.service.config_values import integer as integer
from telemetry.service.config_values import number as number


def _unicast(value: object) -> Address:
    if not isinstance(value, str):
        raise ValueError("not text")
    address = parse_address(value)
    if not is_one_host(address):
        raise ValueError("not an address of one host")
    return address


def _of_rail(value: object) -> Address:
    address = _unicast(value)
    if address.version == 6 and address.scope_id is not None and not is_link_local(address):
        raise ValueError("a zone, and no link-local address")
    return without_zone(address)


def _network(value: object) -> Network:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return ipaddress.ip_network(value)


Network = ipaddress.IPv4Network | ipaddress.IPv6Network
ProbeNetwork = Annotated[
    Network,
    BeforeValidator(_network),
    Field(description='a network as text, e.g. "10.0.0.0/8" or "fd00::/16"'),
]

_UNICAST = 'a unicast IPv4 or IPv6 address as text, e.g. "10.0.0.1" or "fd00::1", not IPv4-mapped'
UnicastAddress = Annotated[Address, BeforeValidator(_unicast), Field(description=_UNICAST)]
RailAddress = Annotated[
    Address,
    BeforeValidator(_of_rail),
    Field(description=_UNICAST + "; a link-local one with or without the zone of its interface"),
]
"""Without the zone: it is the interface of the link."""


def _netdev(value: object) -> str:
    if not isinstance(value, str) or not is_netdev_name(value):
        raise ValueError("not the name of a device")
    return value


Netdev = Annotated[
    str,
    BeforeValidator(_netdev),
    Field(
        description="a network interface name, 1 to 15 bytes without space, / and :, not . or ..",
    ),
]
VerbsDevice = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_.-]{1,63}$",
        description="a verbs device's name as in /sys/class/infiniband",
    ),
]
Rail = Annotated[int, Field(ge=0, le=31, strict=True, description="an integer from 0 to 31")]
BrokerName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9:]([A-Za-z0-9._:-]{0,251}[A-Za-z0-9:])?$",
        description="a host name, or an IP address without brackets",
    ),
]
TopicPrefix = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9._-]{1,64}(/[A-Za-z0-9._-]{1,64}){0,7}$",
        description="1 to 8 topic levels of letters, digits, '.', '-' and '_', with '/' between",
    ),
]


GroupName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9_-]{0,30}[a-z0-9])?$")]
SystemGroup = Annotated[
    str,
    Field(
        pattern=r"^(|[a-z_][a-z0-9_-]{0,30})$",
        description='the name of a group of this system, or "" for none',
    ),
]


LeafName = Annotated[
    str, Field(pattern=r"^[!-~]{1,64}$", description="1 to 64 printable characters without space")
]
PORT_TEXT = '"HOST/RAIL" or "*/RAIL", e.g. "h0/3"'
PortName = Annotated[
    str,
    Field(
        pattern=r"^(\*|[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?)/([0-9]|[12][0-9]|3[01])$",
        description=PORT_TEXT,
    ),
]


def _cpus(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not text")
    parse_cpus(value)
    return value


Cpus = Annotated[
    str,
    BeforeValidator(_cpus),
    Field(description='CPUs such as "0-1,8", "housekeeping", or "" to leave them alone'),
]


def _detector(value: object) -> str:
    if value not in DETECTORS:
        raise ValueError("not a detector")
    return str(value)


Detector = Annotated[str, BeforeValidator(_detector)]


def no_limit_or_three(value: int) -> int:
    """0, or at least 3: a link needs two transitions to come back."""
    if value in (1, 2):
        raise ValueError("a link that went out could never return")
    return value

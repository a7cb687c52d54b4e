"""Checks across keys: duplicates, address families, thresholds in order.

They run on the raw document, beside the checks of single values, so that one start shows every
problem; whatever has the wrong shape is left to those.
"""

from __future__ import annotations

import ipaddress
from typing import Any

Path = tuple[str | int, ...]
Found = list[tuple[Path, str]]


def check(raw: dict[str, Any], *, local_host: str) -> Found:
    """Problems as (path, text), in no order."""
    found: Found = []
    families = _links(raw, found)
    _peers(raw, local_host, families, found)
    _topology(raw, local_host, found)
    damping = raw.get("damping")
    if isinstance(damping, dict):
        suppress, reuse = damping.get("suppress", 2500), damping.get("reuse", 1000)
        if _number(suppress) and _number(reuse) and reuse >= suppress:
            key = "reuse" if "reuse" in damping else "suppress"
            found.append(
                (
                    ("damping", key),
                    f"reuse ({reuse:g}) must lie below suppress ({suppress:g}); "
                    f"allowed: reuse < suppress",
                )
            )
    _ptp_masters(raw.get("clock"), found)
    _broker(raw.get("broker"), found)
    metrics = raw.get("metrics")
    listen = metrics.get("listen") if isinstance(metrics, dict) else None
    if isinstance(listen, str) and listen.rpartition(":")[2].isdigit():
        port = int(listen.rpartition(":")[2])
        if not 1 <= port <= 65535:
            found.append((("metrics", "listen"), f"port {port}; allowed: a port from 1 to 65535"))
    return found


def _ptp_masters(clock: object, found: Found) -> None:
    if not isinstance(clock, dict):
        return
    listed = clock.get("ptp_masters")
    seen: dict[object, int] = {}
    for index, text in enumerate(listed if isinstance(listed, list) else ()):
        address = _address(text)
        if address is None:
            continue
        where: Path = ("clock", "ptp_masters", index)
        if seen.setdefault(address, index) != index:
            text = f"{address} is also ptp_masters[{seen[address]}]; allowed: each address once"
            found.append((where, text))
        if address.is_link_local and address.version == 6 and not clock.get("ptp_interface"):
            text = f"{address} is of one link; allowed: with ptp_interface"
            found.append((where, text))


def _broker(broker: object, found: Found) -> None:
    """Files that belong together, and no plain text to an address that other networks reach."""
    if not isinstance(broker, dict):
        return
    from telemetry.broker.settings import needs_tls  # a daemon without a broker loads none of it

    for key, needs in (("cert_file", "ca_file"), ("key_file", "cert_file"),
                       ("password_file", "username")):  # fmt: skip
        if key in broker and needs not in broker:
            found.append((("broker", key), f"stands alone; allowed: with {needs}"))
    address = _address(broker.get("host"))
    if address is not None and "ca_file" not in broker and needs_tls(str(address)):
        text = f"{address} is public; allowed without TLS: loopback and private; else set ca_file"
        found.append((("broker", "host"), text))


def _topology(raw: dict[str, Any], local_host: str, found: Found) -> None:
    """Each port on one leaf, and ports of hosts that there are."""
    hosts = {local_host, "*"} | {
        peer["host"] for _, peer in _tables(raw.get("peers")) if isinstance(peer.get("host"), str)
    }
    discovers = "broker" in raw and not raw.get("peers")
    topology = raw.get("topology")
    names: dict[str, int] = {}
    ports: dict[str, int] = {}
    leaves = topology.get("leaves") if isinstance(topology, dict) else None
    for index, leaf in _tables(leaves):
        where: Path = ("topology", "leaves", index)
        name, listed = leaf.get("name"), leaf.get("ports")
        if isinstance(name, str) and names.setdefault(name, index) != index:
            text = f'"{name}" is also leaves[{names[name]}]; allowed: each name once'
            found.append(((*where, "name"), text))
        for port in listed if isinstance(listed, list) else ():
            if not isinstance(port, str) or "/" not in port:
                continue
            host = port.rpartition("/")[0]
            if host not in hosts and not discovers:
                text = f'"{port}": no such host; allowed: this host, its peers, or *'
                found.append(((*where, "ports"), text))
            elif ports.setdefault(port, index) != index:
                text = f'"{port}" is also on leaves[{ports[port]}]; allowed: each port once'
                found.append(((*where, "ports"), text))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _tables(value: object) -> list[tuple[int, dict[str, Any]]]:
    if not isinstance(value, list):
        return []
    return [(i, item) for i, item in enumerate(value) if isinstance(item, dict)]


def _address(value: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _links(raw: dict[str, Any], found: Found) -> dict[int, int]:
    """Check the links; returns rail → address family (4, 6) where it is stated."""
    seen: dict[tuple[str, object], int] = {}
    families: dict[int, int] = {}
    for index, link in _tables(raw.get("links")):
        values: dict[str, object] = {
            "netdev": link.get("netdev"),
            "rail": link.get("rail"),
            "address": _address(link.get("address")),
        }
        for key, value in values.items():
            if value is None or not isinstance(
                value, str | int | ipaddress.IPv4Address | ipaddress.IPv6Address
            ):
                continue
            first = seen.setdefault((key, value), index)
            if first != index:
                found.append(
                    (
                        ("links", index, key),
                        f"{value} is also links[{first}].{key}; allowed: each {key} once",
                    )
                )
        address, rail = values["address"], values["rail"]
        if isinstance(rail, int) and isinstance(
            address, ipaddress.IPv4Address | ipaddress.IPv6Address
        ):
            families[rail] = address.version
    return families


def _peers(raw: dict[str, Any], local_host: str, families: dict[int, int], found: Found) -> None:
    hosts: dict[str, int] = {}
    addresses: dict[object, Path] = {}
    for index, link in _tables(raw.get("links")):
        if (own := _address(link.get("address"))) is not None:
            addresses.setdefault(own, ("links", index, "address"))
    for index, peer in _tables(raw.get("peers")):
        host = peer.get("host")
        if isinstance(host, str):
            where: Path = ("peers", index, "host")
            if host == local_host:
                found.append((where, f'"{host}" is this host; allowed: other hosts only'))
            first = hosts.setdefault(host, index)
            if first != index:
                found.append(
                    (where, f'"{host}" is also peers[{first}].host; allowed: each host once')
                )
        _peer_addresses(index, peer, families, addresses, found)


def _peer_addresses(
    index: int,
    peer: dict[str, Any],
    families: dict[int, int],
    addresses: dict[object, Path],
    found: Found,
) -> None:
    on_rail: dict[int, dict[int, int]] = {}
    for number, entry in _tables(peer.get("addresses")):
        rail, address = entry.get("rail"), _address(entry.get("address"))
        where: Path = ("peers", index, "addresses", number)
        if address is None:
            continue
        first = addresses.setdefault(address, (*where, "address"))
        if first != (*where, "address"):
            found.append(
                ((*where, "address"), f"{address} stands twice; allowed: each address once")
            )
        if not isinstance(rail, int) or isinstance(rail, bool):
            continue
        known = on_rail.setdefault(rail, {})
        other = known.setdefault(address.version, number)
        if other != number:
            found.append(
                (
                    (*where, "rail"),
                    f"rail {rail} has an IPv{address.version} address in addresses[{other}]; "
                    f"allowed: one IPv4 and one IPv6 address for each rail",
                )
            )
    for rail, known in on_rail.items():
        if rail in families and families[rail] not in known:
            number = next(iter(known.values()))
            found.append(
                (
                    ("peers", index, "addresses", number, "address"),
                    f"IPv{next(iter(known))}, but the local link of rail {rail} has an "
                    f"IPv{families[rail]} address; allowed: an IPv{families[rail]} address "
                    f"for rail {rail}",
                )
            )

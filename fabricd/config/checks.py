"""Checks across keys: duplicates, address families, thresholds in order.

They run on the raw document, beside the checks of single values, so that one start shows every
problem; whatever has the wrong shape is left to those.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

from fabricd.config import peer_checks
from fabricd.config.addresses import is_link_local, zone_of
from fabricd.config.files import Origin
from fabricd.config.peer_checks import Found, Path, ip_address, tables
from telemetry.service.config_values import name_problem


def check(
    raw: dict[str, Any],
    *,
    local_host: str,
    place: Callable[[Path], Origin],
    all_peers: bool = True,
) -> Found:
    """Problems as (path, text), in no order.

    Args:
        raw: the merged document.
        local_host: the name of this host.
        place: the file and line of a path, for problems of two places.
        all_peers: False: ``peers_file`` was not read, so that ports may be of hosts in it.
    """
    found: Found = []
    _links(raw, found)
    _names(raw, local_host, found)
    peer_checks.check(raw, local_host, place, found)
    _topology(raw, local_host, found, all_peers=all_peers)
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
        address = ip_address(text)
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
    address = ip_address(broker.get("host"))
    if address is not None and "ca_file" not in broker and needs_tls(str(address)):
        text = f"{address} is public; allowed without TLS: loopback and private; else set ca_file"
        found.append((("broker", "host"), text))


def _topology(raw: dict[str, Any], local_host: str, found: Found, *, all_peers: bool) -> None:
    """Each port on one leaf, and ports of hosts that there are."""
    hosts = {local_host, "*"} | {
        peer["host"] for _, peer in tables(raw.get("peers")) if isinstance(peer.get("host"), str)
    }
    others = [peer for _, peer in tables(raw.get("peers")) if peer.get("host") != local_host]
    discovers = "broker" in raw and not others
    topology = raw.get("topology")
    names: dict[str, int] = {}
    ports: dict[str, int] = {}
    leaves = topology.get("leaves") if isinstance(topology, dict) else None
    for index, leaf in tables(leaves):
        where: Path = ("topology", "leaves", index)
        name, listed = leaf.get("name"), leaf.get("ports")
        if isinstance(name, str) and names.setdefault(name, index) != index:
            text = f'"{name}" is also leaves[{names[name]}]; allowed: each name once'
            found.append(((*where, "name"), text))
        for port in listed if isinstance(listed, list) else ():
            if not isinstance(port, str) or "/" not in port:
                continue
            host = port.rpartition("/")[0]
            if host not in hosts and all_peers and not discovers:
                text = f'"{port}": no such host; allowed: this host, its peers, or *'
                found.append(((*where, "ports"), text))
            elif ports.setdefault(port, index) != index:
                text = f'"{port}" is also on leaves[{ports[port]}]; allowed: each port once'
                found.append(((*where, "ports"), text))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _names(raw: dict[str, Any], local_host: str, found: Found) -> None:
    """Names by which hosts know each other; a host that knows no other may have any."""
    paths = raw.get("paths")
    shared = isinstance(paths, dict) and "peers_file" in paths
    peers, host = tables(raw.get("peers")), raw.get("host")
    written = isinstance(host, dict) and "name" in host
    if not (peers or shared or "broker" in raw):
        return
    if problem := name_problem(local_host, written=written):
        found.append((("host", "name"), problem))
    for index, peer in peers:
        name = peer.get("host")
        if isinstance(name, str) and name != local_host and (problem := name_problem(name)):
            found.append((("peers", index, "host"), problem))


def _links(raw: dict[str, Any], found: Found) -> None:
    """Each netdev, rail and address once, and a zone is the link's own interface."""
    seen: dict[tuple[str, object], int] = {}
    for index, link in tables(raw.get("links")):
        address = ip_address(link.get("address"))
        values: dict[str, object] = {
            "netdev": link.get("netdev"),
            "rail": link.get("rail"),
            # A link-local one is of its link: another may have the same.
            "address": None if address is not None and is_link_local(address) else address,
        }
        zone, netdev = zone_of(link.get("address")), link.get("netdev")
        if zone is not None and zone != netdev and isinstance(netdev, str):
            text = f"%{zone} is not the link's interface; allowed: %{netdev}, or no zone"
            found.append((("links", index, "address"), text))
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

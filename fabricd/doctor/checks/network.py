"""Checks of interfaces: MTU, bonds, addresses, ARP and reverse-path filters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address

from fabricd.doctor.facts import Address, HostFacts
from fabricd.doctor.finding import Finding, Severity

ROCE_OVERHEAD = 96
"""Bytes of headers that the kernel subtracts from an interface's MTU (iboe_get_mtu)."""
_MTUS = (4096, 2048, 1024, 512, 256)
_STRICT = 1  # rp_filter


def roce_mtu(mtu: int) -> int:
    """The RDMA MTU, in bytes, that an interface's MTU allows; 0: none."""
    return next((size for size in _MTUS if mtu - ROCE_OVERHEAD >= size), 0)


def mtus(facts: HostFacts) -> Iterator[Finding]:
    """Rails that differ in MTU; RoCE below 4096; ports that use less than they could."""
    by_mtu: dict[int, list[str]] = defaultdict(list)
    for rail in facts.rails:
        if (netdev := facts.netdevs.get(rail)) and netdev.mtu:
            by_mtu[netdev.mtu].append(rail)
    if len(by_mtu) > 1:
        rows = tuple(f"{mtu}: {', '.join(names)}" for mtu, names in sorted(by_mtu.items()))
        yield Finding(
            Severity.WARNING, "host", "The rails have different MTUs.",
            "Give all rails and their switch ports one MTU, 9000 where they allow it.", rows,
        )  # fmt: skip
    for port in facts.ports:
        if not port.active or not facts.concerns(port):
            continue
        allowed = min(
            (roce_mtu(facts.netdevs[name].mtu) for name in port.netdevs
             if name in facts.netdevs and facts.netdevs[name].mtu), default=0,
        )  # fmt: skip
        if port.roce and allowed and port.active_mtu and port.active_mtu < allowed:
            yield Finding(
                Severity.WARNING, str(port),
                f"{port} runs with an RDMA MTU of {port.active_mtu}; its interface allows "
                f"{allowed}.", "Set the interface down and up, so that the driver reads it again.",
            )  # fmt: skip
        best = min(port.max_mtu or 4096, 4096)
        if port.roce and allowed and allowed < best:
            name = next(name for name in port.netdevs if name in facts.netdevs)
            yield Finding(
                Severity.NOTE, str(port),
                f"MTU {facts.netdevs[name].mtu} of {name} allows an RDMA MTU of {allowed}.",
                f"RDMA packets of {best} bytes need an interface MTU of {best + ROCE_OVERHEAD} or "
                "more on both hosts and on every switch between them.",
            )  # fmt: skip
        if not port.roce and port.active_mtu and port.max_mtu and port.active_mtu < port.max_mtu:
            yield Finding(
                Severity.NOTE, str(port),
                f"{port} runs with an MTU of {port.active_mtu}; it can do {port.max_mtu}.",
                "Look at the subnet manager's partition (mtu=5 means 4096).",
            )  # fmt: skip


def bonds(facts: HostFacts) -> Iterator[Finding]:
    """A bond is one rail: it must not be counted beside its members."""
    members: dict[str, list[str]] = defaultdict(list)
    for name, netdev in facts.netdevs.items():
        if netdev.master in facts.netdevs:
            members[netdev.master].append(name)
    for bond, names in sorted(members.items()):
        counted = [name for name in names if name in facts.rails]
        if counted and bond in facts.rails:
            yield Finding(
                Severity.CRITICAL, bond,
                f"{bond} and its members {', '.join(counted)} are all rails.",
                f"Keep {bond} alone in {facts.rails_by}: a bond is one rail.",
            )  # fmt: skip
        elif counted:
            yield Finding(
                Severity.WARNING, bond,
                f"{', '.join(counted)} belong to {bond} and are rails of their own.",
                f"Name {bond} as the rail, or dissolve the bond: its members have no addresses.",
            )  # fmt: skip
        own = [str(port) for port in facts.ports if set(port.netdevs) & set(names)]
        bonded = [port for port in facts.ports if bond in port.netdevs]
        if len(own) > 1 and not bonded and bond in facts.rails:
            yield Finding(
                Severity.WARNING, bond,
                f"The members of {bond} have verbs ports of their own ({', '.join(own)}); "
                f"{bond} has none: RoCE LAG is off.",
                "Both ports must be of one card, and the bond's mode active-backup, balance-xor or "
                "802.3ad before the verbs module loads; or carry RDMA without a bond.",
            )  # fmt: skip


def addresses(facts: HostFacts) -> Iterator[Finding]:
    """The same address twice; rails in one subnet whose ARP and routing mix them up."""
    if facts.addresses is None:
        return
    holders: dict[IPv4Address | IPv6Address, list[str]] = defaultdict(list)
    for address in facts.addresses:
        ip = address.interface.ip
        if not ip.is_loopback and not ip.is_link_local:
            holders[ip].append(address.netdev)
    for ip, names in holders.items():
        if len(set(names)) > 1 and set(names) & set(facts.rails):
            yield Finding(
                Severity.CRITICAL, str(ip),
                f"{ip} is an address of {', '.join(sorted(set(names)))}.",
                "Give each interface an address of its own.",
            )  # fmt: skip
    shared: dict[IPv4Network, list[Address]] = defaultdict(list)
    for address in facts.addresses:
        interface = address.interface
        if address.netdev in facts.rails and isinstance(interface, IPv4Interface):
            network = interface.network
            if network.prefixlen < network.max_prefixlen - 1:  # /31 and /32 share nothing
                shared[network].append(address)
    for subnet, here in shared.items():
        if len({address.netdev for address in here}) > 1:
            yield from _shared_subnet(facts, str(subnet), here)


def _shared_subnet(facts: HostFacts, network: str, here: list[Address]) -> Iterator[Finding]:
    rails = sorted({address.netdev for address in here})
    flux = [rail for rail in rails if _sysctl(facts, rail, "arp_ignore") == 0]
    if flux:
        yield Finding(
            Severity.WARNING, network,
            f"{', '.join(rails)} share {network}, and {', '.join(flux)} answer ARP for any address "
            "of this host: packets for one rail arrive at another.",
            "Set net.ipv4.conf.<rail>.arp_ignore=1 and arp_announce=2, or give each rail a subnet.",
        )  # fmt: skip
    unrouted = sorted(
        {str(address.interface.ip) for address in here} - _routed_sources(facts, here)
    )
    if "routing rules" in facts.unexamined or not unrouted:
        return
    strict = [rail for rail in rails if _sysctl(facts, rail, "rp_filter") == _STRICT]
    seen = (
        f"{', '.join(rails)} share {network}, and {', '.join(unrouted)} have no routing rule of "
        "their own: all of them send through the first rail of the routing table"
    )
    if strict:
        seen += f", and rp_filter=1 on {', '.join(strict)} drops what arrives elsewhere"
    yield Finding(
        Severity.CRITICAL if strict else Severity.WARNING, network, f"{seen}.",
        "For each rail: `ip rule add from ADDRESS table N` and a table N with its own routes; "
        "rp_filter=2 or 0. Or give each rail a subnet.",
    )  # fmt: skip


def _sysctl(facts: HostFacts, rail: str, key: str) -> int | None:
    netdev = facts.netdevs.get(rail)
    return netdev.sysctls.get(key) if netdev else None


def _routed_sources(facts: HostFacts, here: list[Address]) -> set[str]:
    """Addresses that a rule names: alone, or with the length of a host's address."""
    found = set()
    for address in here:
        ip = str(address.interface.ip)
        if ip in facts.source_rules or f"{ip}/32" in facts.source_rules:
            found.add(ip)
    return found

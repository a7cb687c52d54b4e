"""Makes the namespaces, wires, addresses and routes of a topology, and removes them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pyroute2 import IPRoute
from pyroute2 import netns as pr_netns
from pyroute2.netlink.exceptions import NetlinkError

from lab.network import netns
from lab.topology import Address, Role, Route, Topology, Wire

AF = {4: socket.AF_INET, 6: socket.AF_INET6}
IFA_F_NODAD = 0x02
TXQLEN = 1000
IFF_UP = 1
IFF_LOWER_UP = 1 << 16
BRIDGED = ("leaf", "management")

_COMMON: dict[str, str | int] = {
    "net/ipv4/conf/all/send_redirects": 0,
    "net/ipv4/conf/default/send_redirects": 0,
    "net/ipv4/conf/all/accept_redirects": 0,
    "net/ipv6/conf/all/accept_ra": 0,
    "net/ipv6/conf/default/accept_ra": 0,
    "net/ipv6/conf/default/accept_dad": 0,
    "net/ipv6/conf/all/keep_addr_on_down": 1,
    "net/ipv6/conf/default/keep_addr_on_down": 1,
}
# Of each device: the kernel has no defaults of these for a namespace. A neighbour that could not be
# resolved is asked again soon, so that our own ARP back-off of a second does not prolong a black
# hole that has ended.
_NEIGHBOUR: dict[str, str | int] = {"retrans_time_ms": 200, "mcast_solicit": 5}
_HOST: dict[str, str | int] = {
    # The one that every kernel has and lets a namespace use. BBR, some machines' default, keeps the
    # short queues of the lab's links full: every eighth probe was lost beside a job.
    "net/ipv4/tcp_congestion_control": "reno",
    # Each rail answers only for itself: no ARP reply for another rail's address, no packet
    # accepted on a rail that its answer would not leave by.
    "net/ipv4/conf/all/arp_ignore": 1,
    "net/ipv4/conf/all/arp_announce": 2,
    "net/ipv4/conf/all/rp_filter": 1,
    "net/ipv4/conf/default/rp_filter": 1,
}
_ROUTER: dict[str, str | int] = {
    "net/ipv4/ip_forward": 1,
    "net/ipv6/conf/all/forwarding": 1,
    "net/ipv4/conf/all/rp_filter": 0,
    "net/ipv4/conf/default/rp_filter": 0,
    "net/ipv4/fib_multipath_hash_policy": 1,
    "net/ipv6/fib_multipath_hash_policy": 1,
    # A next hop without carrier is skipped at once, so one spine takes over from the other.
    "net/ipv4/conf/all/ignore_routes_with_linkdown": 1,
    "net/ipv4/conf/default/ignore_routes_with_linkdown": 1,
    "net/ipv6/conf/all/ignore_routes_with_linkdown": 1,
    "net/ipv6/conf/default/ignore_routes_with_linkdown": 1,
}


@contextmanager
def route_socket(name: str) -> Iterator[Any]:
    """A pyroute2 ``IPRoute`` inside a namespace.

    The socket is made by a thread of ours: pyroute2's own way forks, which threads make unsafe.
    """
    sock = netns.netlink_socket(name, 0, socket.SOCK_DGRAM)
    with IPRoute(fileno=sock.detach()) as ip:
        yield ip


def build(topology: Topology) -> None:
    """Bring the whole topology up.

    Raises:
        FileExistsError: a namespace of that name exists (the lab is up, or stale).
        NetlinkError, OSError: the kernel refused; what was made is removed again.
    """
    try:
        netns.in_thread(lambda: _build(topology))
    except BaseException:
        destroy(topology)
        raise


def _build(topology: Topology) -> None:
    nodes = list(topology.namespaces())
    for role, _, name in nodes:
        pr_netns.create(name)
        sysctls = _COMMON | (_HOST if role == "host" else _ROUTER)
        netns.run_in(name, lambda values=sysctls: netns.write_sysctls(values))  # type: ignore[misc]
    with ExitStack() as stack:
        sockets = {name: stack.enter_context(route_socket(name)) for _, _, name in nodes}
        for role, _, name in nodes:
            sockets[name].link("set", index=1, state="up")
            if role in BRIDGED:
                sockets[name].link("add", kind="bridge", ifname="br0", br_stp_state=0)
        index = {
            name: {"br0": ip.link_lookup(ifname="br0")[0]}
            for role, _, name in nodes
            for ip in [sockets[name]]
            if role in BRIDGED
        }
        for wire in topology.wires():
            _lay(wire, sockets, index, topology)
        for role, number, name in nodes:
            ip, ports = sockets[name], index.setdefault(name, {})
            if role in BRIDGED:
                ip.link("set", index=ports["br0"], state="up")
            for address in topology.addresses(role, number):
                ip.addr("add", **_address_args(address, ports[address.ifname]))
            for ifname, ifindex in ports.items():
                if ifname != "br0":
                    ip.link("set", index=ifindex, state="up")
            netns.run_in(name, lambda p=list(ports): netns.write_sysctls(_neighbour(p)))  # type: ignore[misc]
        for role, number, name in nodes:
            if role == "host":
                for rule in topology.rules(number):
                    sockets[name].rule(
                        "add",
                        family=AF[rule.family],
                        src=rule.source,
                        src_len=32 if rule.family == 4 else 128,
                        table=rule.table,
                        priority=rule.priority,
                    )
            for route in topology.routes(role, number):
                sockets[name].route("replace", **_route_args(route, index[name]))


def _neighbour(ports: list[str]) -> dict[str, str | int]:
    return {
        f"net/{family}/neigh/{port}/{key}": value
        for family in ("ipv4", "ipv6")
        for port in ports
        for key, value in _NEIGHBOUR.items()
    }


def _lay(
    wire: Wire, sockets: dict[str, Any], index: dict[str, dict[str, int]], topology: Topology
) -> None:
    a, b = wire.a, wire.b
    # A segmentation-offload packet larger than the burst is cut up by tbf: ten times the CPU.
    extra = {"gso_max_size": topology.gso_max_bytes} if wire.rate_bps else {}
    sockets[a.ns].link(
        "add",
        kind="veth",
        ifname=a.ifname,
        index=wire.a_ifindex,
        txqlen=TXQLEN,
        num_tx_queues=1,
        num_rx_queues=1,
        **extra,
        peer={
            "ifname": b.ifname,
            "net_ns_fd": b.ns,
            "txqlen": TXQLEN,
            "num_tx_queues": 1,
            "num_rx_queues": 1,
            **extra,
        },
    )
    index.setdefault(a.ns, {})[a.ifname] = wire.a_ifindex
    b_index = sockets[b.ns].link_lookup(ifname=b.ifname)[0]
    index.setdefault(b.ns, {})[b.ifname] = b_index
    for port in (a, b):
        if wire.rate_bps:
            sockets[port.ns].tc(
                "add",
                "tbf",
                index[port.ns][port.ifname],
                handle="1:",
                rate=wire.rate_bps // 8,
                burst=topology.burst_bytes,
                latency=f"{topology.queue_us}us",
            )
    if b.ifname.startswith("h"):
        sockets[b.ns].link("set", index=b_index, master=index[b.ns]["br0"])


def _address_args(address: Address, ifindex: int) -> dict[str, object]:
    extra = {"IFA_FLAGS": IFA_F_NODAD} if address.family == 6 else {}
    return {
        "index": ifindex,
        "address": address.ip,
        "prefixlen": address.prefix,
        "family": AF[address.family],
        **extra,
    }


def _route_args(route: Route, index: dict[str, int]) -> dict[str, object]:
    args: dict[str, object] = {
        "family": AF[route.family],
        "dst": route.dst,
        "table": route.table,
    }
    if route.source:
        args["prefsrc"] = route.source
    if len(route.gateways) > 1:
        args["multipath"] = [
            {"oif": index[name], "gateway": gateway}
            for name, gateway in zip(route.ifnames, route.gateways, strict=True)
        ]
    else:
        args["oif"] = index[route.ifnames[0]]
        if route.gateways:
            args["gateway"] = route.gateways[0]
        else:
            args["scope"] = "link"
    return args


_LATER = {errno.EINVAL, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENODEV}


def restore_routes(topology: Topology, role: Role, number: int, ifname: str | None = None) -> None:
    """Put back the routes over ``ifname`` (default: all) that an admin down took away.

    A route over a device that is down cannot be added (ENETDOWN), nor one whose source address is
    not there (EINVAL): such are left for the end of the fault that holds that device, or for the
    address. A device that is gone has no routes.
    """
    netns.in_thread(lambda: _restore(topology, role, number, ifname))


def _restore(topology: Topology, role: Role, number: int, ifname: str | None) -> None:
    with route_socket(topology.ns(role, number)) as ip:
        links = {m.get_attr("IFLA_IFNAME"): (m["index"], m["flags"] & 1) for m in ip.get_links()}
        index = {link: number for link, (number, _) in links.items()}
        for route in topology.routes(role, number):
            if ifname is not None and ifname not in route.ifnames:
                continue
            if not all(i in links and links[i][1] for i in route.ifnames):
                continue
            try:
                ip.route("replace", **_route_args(route, index))
            except NetlinkError as error:
                if error.code not in _LATER:
                    raise


def set_addresses(topology: Topology, host: int, ifname: str, *, present: bool) -> None:
    """Take a rail's addresses away (the kernel drops the routes that use them), or give them back.

    What is so already is left so.
    """
    netns.in_thread(lambda: _set_addresses(topology, host, ifname, present))
    if present:
        restore_routes(topology, "host", host, ifname)


def _set_addresses(topology: Topology, host: int, ifname: str, present: bool) -> None:
    with route_socket(topology.ns("host", host)) as ip:
        index = ip.link_lookup(ifname=ifname)[0]
        for address in topology.addresses("host", host):
            if address.ifname != ifname:
                continue
            try:
                ip.addr("add" if present else "del", **_address_args(address, index))
            except NetlinkError as error:
                if error.code not in {errno.EEXIST, errno.EADDRNOTAVAIL}:
                    raise


def destroy(topology: Topology) -> None:
    """Remove every namespace of the topology; those that are not there are passed over."""
    destroy_names([name for _, _, name in topology.namespaces()])


def destroy_names(names: list[str]) -> None:
    """Remove namespaces; the kernel takes their devices down when the last user ends."""
    for name in names:
        if netns.exists(name):
            try:
                pr_netns.remove(name)
            except FileNotFoundError:
                continue


@dataclass(frozen=True, slots=True)
class LinkView:
    """What the kernel says about one interface."""

    up: bool
    """Administratively."""
    carrier: bool
    carrier_down_count: int


def read_links(ns: str) -> dict[str, LinkView]:
    """All interfaces of a namespace by name."""

    def read() -> dict[str, LinkView]:
        with route_socket(ns) as ip:
            return {
                m.get_attr("IFLA_IFNAME"): LinkView(
                    up=bool(m["flags"] & IFF_UP),
                    carrier=bool(m["flags"] & IFF_LOWER_UP),
                    carrier_down_count=int(m.get_attr("IFLA_CARRIER_DOWN_COUNT")),
                )
                for m in ip.get_links()
            }

    return netns.in_thread(read)

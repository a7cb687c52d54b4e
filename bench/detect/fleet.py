"""The simulated fabric: who probes whom, by the daemon's own choice of peers."""

from __future__ import annotations

from functools import cache

from bench.detect.scenario import HOSTS, RAILS, leaf_of
from fabricd.config.loader import Config, parse
from fabricd.detect.locate import Topology
from fabricd.detect.mesh import Node, PathSpec, choose

PEERS, CROSS = 10, 1


def name(host: int) -> str:
    """The host's name."""
    return f"h{host}"


def number(host: str) -> int:
    """The inverse of `name`."""
    return int(host[1:])


def address(host: int, rail: int) -> str:
    """Of a port."""
    return f"10.{rail}.{host >> 8}.{host & 255}"


@cache
def topology() -> Topology:
    """A static map, as an operator or LLDP would give it."""
    ports = [(h, r) for h in range(HOSTS) for r in range(RAILS)]
    return Topology({(name(h), r): leaf_of((h, r)) for h, r in ports})


@cache
def nodes() -> tuple[Node, ...]:
    """All hosts, as `fabricd.detect.mesh.choose` takes them."""
    return tuple(Node(name(h), {r: (address(h, r),) for r in range(RAILS)}) for h in range(HOSTS))


@cache
def paths(host: int) -> tuple[PathSpec, ...]:
    """What that host probes: ``PEERS`` on each rail, ``CROSS`` across rails, and who chose it."""
    links = [(r, r, address(host, r)) for r in range(RAILS)]
    peers = [node for node in nodes() if node.host != name(host)]
    return tuple(choose(name(host), links, peers, per_rail=PEERS, cross_rail=CROSS))


@cache
def config(host: int) -> Config:
    """The daemon's configuration, with its defaults."""
    links = "".join(
        f'[[links]]\nnetdev = "rail{r}"\nrail = {r}\naddress = "{address(host, r)}"\n'
        for r in range(RAILS)
    )
    return parse(f'[host]\nname = "{name(host)}"\n{links}', "simulator")

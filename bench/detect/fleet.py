"""The simulated fabric: who probes whom, by the daemon's own choice of peers."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from bench.detect.scenario import HOSTS, RAILS, leaf_of
from fabricd.config import Config, parse
from fabricd.detect import mesh
from fabricd.detect.locate import Topology
from fabricd.detect.mesh import Node, PathSpec

Ints = NDArray[np.int64]
Chosen = NDArray[np.bool_]
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


def nodes() -> list[Node]:
    """All hosts, as `fabricd.detect.mesh.choose` takes them."""
    return [Node(name(h), {r: (address(h, r),) for r in range(RAILS)}) for h in range(HOSTS)]


@cache
def paths(host: int) -> tuple[PathSpec, ...]:
    """What that host probes: what `choose` gives for it (a test says so), for all hosts at once."""
    out = []
    for rail in range(RAILS):
        own = host * RAILS + rail
        same, clock = (mesh_[own] for mesh_ in _rail_mesh())
        cross = np.flatnonzero(_cross()[own])
        for port in [*_by_name(np.flatnonzero(same)), *_by_name(cross)]:
            peer, peer_rail = divmod(int(port), RAILS)
            where = address(peer, peer_rail)
            marked = bool(clock[port]) and peer_rail == rail
            out.append(PathSpec(rail, name(peer), peer_rail, where, (), marked))
    return tuple(out)


def _by_name(ports: Ints) -> list[int]:
    return sorted((int(p) for p in ports), key=lambda p: (name(p // RAILS), p % RAILS))


def _weights(salt: int, ports: Ints, keyed: int) -> NDArray[np.uint64]:
    """Of all pairs; ``keyed``: `mesh` takes the host for the port, or the port itself."""
    named = [(name(int(p) // RAILS), int(p) % RAILS) for p in ports]
    keys = mesh._keys(named, keyed)  # noqa: SLF001
    return mesh._mix(keys[:, None] ^ keys[None, :], salt)  # noqa: SLF001


def _best(usable: Chosen, weights: NDArray[np.uint64], count: int) -> Chosen:
    """Of each row the ``count`` least."""
    weights = np.where(usable, weights, np.iinfo(np.uint64).max)
    best = np.argpartition(weights, count, axis=1)[:, :count]
    chosen = np.zeros(usable.shape, dtype=bool)
    np.put_along_axis(chosen, best, values=True, axis=1)
    return chosen & usable


@cache
def _ports() -> tuple[Ints, Ints]:
    numbers = np.arange(HOSTS * RAILS)
    return numbers // RAILS, numbers % RAILS


@cache
def _rail_mesh() -> tuple[Chosen, Chosen]:
    """Pairs of ports of one rail that are probed, and those with clock trains."""
    hosts, rails = _ports()
    same = np.zeros((len(hosts), len(hosts)), dtype=bool)
    clock = same.copy()
    for rail in range(RAILS):
        at = np.flatnonzero(rails == rail)
        others = ~np.eye(len(at), dtype=bool)
        own = _best(others, _weights(mesh._SAME, at, mesh._SAME), PEERS)  # noqa: SLF001
        first = _best(own, _weights(rail, at, mesh._SAME), 1)  # noqa: SLF001
        same[np.ix_(at, at)] = own | own.T
        clock[np.ix_(at, at)] = first | first.T
    return same, clock


@cache
def _cross() -> Chosen:
    hosts, rails = _ports()
    usable = (hosts[:, None] != hosts[None, :]) & (rails[:, None] != rails[None, :])
    salt = mesh._CROSS  # noqa: SLF001
    own = _best(usable, _weights(salt, np.arange(len(hosts)), salt), CROSS)
    return np.asarray(own | own.T)


@cache
def config(host: int) -> Config:
    """The daemon's configuration, with its defaults."""
    links = "".join(
        f'[[links]]\nnetdev = "rail{r}"\nrail = {r}\naddress = "{address(host, r)}"\n'
        for r in range(RAILS)
    )
    return parse(f'[host]\nname = "{name(host)}"\n{links}', "simulator")

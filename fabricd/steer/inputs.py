"""The engine's links and paths as inputs of the steering policy. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from fabricd.links.machine import CARRYING
from fabricd.state.model import Link, Path
from fabricd.state.rdma_rails import RdmaRails
from fabricd.steer import policy
from fabricd.steer.exceptions import ExceptionLimiter, RailPeer
from telemetry.events import LinkState

_WELL = CARRYING - {LinkState.DEGRADED}


def plan(
    links: Sequence[Link],
    paths: Sequence[Path],
    rdma: RdmaRails,
    *,
    drained: Container[str],
    share: Callable[[Link], float],
    degraded: Callable[[Link], float],
    max_probe_share: float,
    refused: frozenset[RailPeer],
) -> policy.Plan:
    """What steering would do now.

    Args:
        links: all of the host.
        paths: all probed paths.
        rdma: the same over RDMA.
        drained: netdevs that an operator took out.
        share: the part of its weight that the forecast leaves a link, 0 to 1.
        degraded: the part that a DEGRADED link carries, 0 to 1.
        max_probe_share: the part of the links that probes alone may take.
        refused: (netdev, peer) whose exceptions stay off the page.
    """
    # The usual case: no path is out or loses much, and then none is asked about.
    some = _trouble(paths) or any(p.health.state not in _WELL for p in rdma.paths)
    return policy.plan(
        [
            policy.LinkInput(
                x.netdev, x.health.state, x.carrier,
                drained=x.netdev in drained,
                share=share(x), since_ns=x.named_ns, by_probes=x.by_probes,
                degraded=degraded(x),
                rdma=rdma.link_state(x), rdma_alone=rdma.alone(x),
            )
            for x in links
        ],
        [_path(rdma, path) for path in (paths if some else ())],
        share=max_probe_share,
        refused=refused,
    )  # fmt: skip


def limit(
    limiter: ExceptionLimiter,
    links: Sequence[Link],
    paths: Sequence[Path],
    rdma: RdmaRails,
    max_probe_share: float,
    now: int,
) -> int | None:
    """Decide which exceptions stay off the page; returns when (ns) to decide again.

    Args:
        limiter: remembers what was decided.
        links: all of the host.
        paths: all probed paths.
        rdma: the same over RDMA.
        max_probe_share: the part of the links that probes alone may take.
        now: CLOCK_MONOTONIC ns.
    """
    found = [_path(rdma, path) for path in (paths if _trouble(paths) else ())]
    taken = [
        policy.LinkInput(x.netdev, x.health.state, x.carrier, by_probes=x.by_probes) for x in links
    ]
    wanted = policy.wanted_exceptions(found)
    return limiter.update(wanted, policy.refused_exceptions(taken, found, max_probe_share), now)


def _trouble(paths: Sequence[Path]) -> bool:
    return any(p.gone or p.health.state not in _WELL for p in paths)


def _path(rdma: RdmaRails, path: Path) -> policy.PathInput:
    return policy.PathInput(
        path.netdev,
        path.spec.peer,
        (path.spec.address, *path.spec.others),
        # Nobody probes there any more; whether traffic gets through, the plugin sees.
        LinkState.UNKNOWN if path.gone else path.health.state,
        path.health.since_ns,
        rdma=rdma.path_state(path),
        peer_dark=path.peer_dark,
    )

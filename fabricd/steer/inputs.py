"""What the engine knows, as the steering policy wants it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabricd.links.machine import CARRYING
from fabricd.steer import policy
from telemetry.events import LinkState

if TYPE_CHECKING:
    from fabricd.engine import Engine
    from fabricd.state.model import Path

_WELL = CARRYING - {LinkState.DEGRADED}


def plan(engine: Engine) -> policy.Plan:
    """What steering would do now."""
    # The usual case: no path is out or loses much, and then none is asked about.
    some = any(p.gone or p.health.state not in _WELL for p in engine.paths)
    some = some or any(p.health.state not in _WELL for p in engine.rdma.paths)
    return policy.plan(
        [
            policy.LinkInput(
                x.netdev, x.health.state, x.carrier,
                drained=x.netdev in engine.orders.drained,
                share=engine.share(x), since_ns=x.named_ns, by_probes=x.by_probes,
                degraded=engine.degraded(x),
                rdma=engine.rdma.link_state(x), rdma_alone=engine.rdma.alone(x),
            )
            for x in engine.links
        ],
        [_path(engine, path) for path in (engine.paths if some else ())],
        share=engine.max_probe_share,
    )  # fmt: skip


def _path(engine: Engine, path: Path) -> policy.PathInput:
    return policy.PathInput(
        path.netdev,
        path.spec.peer,
        (path.spec.address, *path.spec.others),
        # Nobody probes there any more; whether traffic gets through, the plugin sees.
        LinkState.UNKNOWN if path.gone else path.health.state,
        path.health.since_ns,
        rdma=engine.rdma.path_state(path),
    )

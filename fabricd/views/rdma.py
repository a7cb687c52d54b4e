"""What the daemon says of RDMA on a link: for metrics, ``status``, ``links`` and ``explain``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fabricd.links.machine import CARRYING
from fabricd.probes.counts import rdma_name
from fabricd.probes.records import LinkRow, PathRow
from fabricd.probes.totals import is_heard
from fabricd.steer.policy import FULL
from telemetry.snapshot import RdmaTotals

if TYPE_CHECKING:
    from fabricd.runtime.host import Host
    from fabricd.state.model import Link, Path

DETECTOR = "probe-rdma"


def totals(host: Host, link: Link, now: int) -> RdmaTotals | None:
    """RDMA of one link for the metrics; None: it is not probed there. ``now``: ns."""
    rdma = host.engine.rdma.link(link.netdev)
    if rdma is None:
        return None
    misses = host.engine.rules.misses
    rows = _rows(host, rdma.index)
    smoothed = [r.rtt_smoothed_ns for r in rows if is_heard(r, misses, now) and r.rtt_smoothed_ns]
    counted = host.prober.counts.of(rdma_name(link.netdev))
    port = _port(host, rdma.index)
    return RdmaTotals(
        broken=rdma.out,
        ip_broken=host.engine.rdma.alone(link),
        weight=weight(host, link) / FULL,
        port_open=port is not None and port.bound,
        sent=counted.sent,
        received=counted.received,
        lost_tx=counted.lost_tx,
        lost_rx=counted.lost_rx,
        rtt_s=statistics.median(smoothed) / 1e9 if smoothed else None,
        paths_silent=sum(_silent(r, misses) for r in rows if r.peer_rdma) if rows else None,
    )


def weight(host: Host, link: Link) -> int:
    """What the page says of RDMA on a link, 0 to ``FULL``."""
    ip = host.publisher.weights.rail_weights().get(link.netdev, FULL)
    return host.publisher.weights.rdma_weights().get(link.netdev, ip)


def document(host: Host, link: Link, now: int) -> dict[str, Any] | None:
    """RDMA of one link as JSON; None: it is not probed there."""
    rdma = host.engine.rdma.link(link.netdev)
    said = totals(host, link, now)
    if rdma is None or said is None:
        return None
    health = rdma.health
    return {
        "port": port_name(host, link),
        "open": said.port_open,
        "state": health.state.name.lower(),
        "since_s": round((now - health.since_ns) / 1e9, 3) if health.since_ns else None,
        "reason": health.reason,
        "weight": said.weight,
        "rtt_us": None if said.rtt_s is None else round(said.rtt_s * 1e6, 1),
        "text": text(host, link, now),
    }


def port_name(host: Host, link: Link) -> str:
    """The verbs port that is probed, as ``mlx5_0/1``; empty: none."""
    ports = host.planner.verbs_ports.get(link.netdev, ())
    return str(ports[0]) if ports else ""


def text(host: Host, link: Link, now: int) -> str:
    """Which of the transports works on a link, in words."""
    engine = host.engine
    rdma = engine.rdma.link(link.netdev)
    if rdma is None:
        why = host.planner.rdma_note if host.planner.verbs_ports.get(link.netdev) else ""
        return "RDMA is not probed here" + (f": {why}" if why else "")
    name = f"RDMA over {port_name(host, link)}"
    port = _port(host, rdma.index)
    if port is None:
        return f"{name}: no prober, or one that knows no RDMA"
    if not port.bound:
        return f"{name}: the prober could not open the port (see its log)"
    if refused := engine.rdma.refused.get(link.netdev):
        return (
            f"{name} is broken ({refused}), and keeps its weight: [steer] max_probe_share = "
            f"{host.config.steer.max_probe_share:g}"
        )
    if rdma.out:
        ip = "IP works" if link.health.state in CARRYING else "IP does not work either"
        return f"{name} is broken, {ip}: {rdma.health.reason}"
    if engine.rdma.alone(link):
        return f"{name} works, IP is broken: {link.health.reason}"
    rows = _rows(host, rdma.index)
    heard = sum(is_heard(row, engine.rules.misses, now) for row in rows)
    told = sum(row.peer_rdma for row in rows)
    return f"{name}: heard on {heard} of {len(rows)} paths; {told} peers have a queue pair"


def against(host: Host, link: Link) -> bool:
    """Whether RDMA probes speak against RDMA on a link."""
    rdma = host.engine.rdma.link(link.netdev)
    return rdma is not None and (rdma.out or link.netdev in host.engine.rdma.refused)


def path_texts(host: Host, link: Link) -> list[tuple[str, bool, int]]:
    """Of each RDMA path of a link: what probes say, whether it is bad, when it was heard (ns)."""
    rdma, misses = host.engine.rdma.link(link.netdev), host.engine.rules.misses
    if rdma is None:
        return []
    states = {p.index: p for p in host.engine.rdma.paths}
    out = []
    for row in _rows(host, rdma.index):
        path = states[row.index]
        known = "" if row.peer_rdma else ", the peer told of no queue pair"
        said = (
            f"{path.spec.peer} rail {path.spec.peer_rail} ({path.spec.address}) over RDMA: "
            f"{path.health.state.name.lower()}, missing in a row rx {row.rx_missed} "
            f"tx {row.tx_missed}{known}"
        )
        out.append((said, _silent(row, misses), row.last_heard_ns))
    return out


def path_state(host: Host, path: Path) -> str | None:
    """State of RDMA beside a UDP path; None: nothing is known of it."""
    state = host.engine.rdma.path_state(path)
    return None if state is None else state.name.lower()


def _silent(row: PathRow, misses: int) -> bool:
    return max(row.rx_missed, row.tx_missed) >= misses


def _rows(host: Host, link: int) -> Sequence[PathRow]:
    table = host.prober.tables.read(recent=True)
    return [row for row in table.rdma_rows if row.link == link] if table else []


def _port(host: Host, link: int) -> LinkRow | None:
    return next((row for row in host.prober.feed.rdma_links() if row.index == link), None)

"""What a clock service says of itself: the document that `fabricd.clock.status_reader` reads."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from clocksync.mesh.host import MeshHost
from clocksync.mesh.neighbours import Edge
from clocksync.mesh.trace import TaiKeeper
from clocksync.pair.model import SECOND, Pair
from clocksync.ptp.client import Grandmaster
from clocksync.ptp.master import Master
from fabricd.clock.chrony import Chrony
from fabricd.clock.paths import ClockPath
from fabricd.clock.phc import Phcs
from fabricd.clock.ptp import PtpEdge


def status_document(core: MeshHost, paths: Iterable[ClockPath], phcs: Phcs) -> dict[str, Any]:
    """State of the host, a row for each path with trains, and one for each NIC's clock."""
    status = core.status
    return {
        "state": status.state.name.lower(), "host": core.id, "reference": status.reference,
        "is_reference": status.is_reference, "epoch": status.epoch,
        "bound_ns": None if math.isinf(status.bound_ns) else status.bound_ns,
        "residual_ns": status.residual_ns, "slope": status.slope, "skew": status.skew,
        "offset_ns": status.offset_ns, "root_delay_ns": status.root_delay_ns,
        "neighbours": status.neighbours, "joins": status.joins, "lost": status.lost,
        "takeovers": status.takeovers, "moves": core.mover.moves,
        "paths": [_path(core, path) for path in paths],
        "phcs": [_phc(phcs, number) for number in sorted(phcs.used())],
    }  # fmt: skip


def tai(keeper: TaiKeeper) -> dict[str, Any]:
    """What the page of TAI does not say."""
    return {"state": keeper.said.line.state.name.lower(), "steps": keeper.steps}


def chrony(told: Chrony) -> dict[str, Any]:
    """What a host's chronyd is told."""
    return {"socket": str(told.path), "told": told.told, "why": told.why}


def ptp(edge: PtpEdge, now_ns: int) -> dict[str, Any]:
    """What a host with PTP masters says of them; times over its own clock."""
    client, time = edge.client, edge.client.time(now_ns)
    return {
        "why": edge.why, "changes": client.status.changes, "refused": edge.refused(),
        "unstamped": edge.unstamped, "wall_steps": edge.crossing.steps,
        "tracking": time is not None and time.tracking,
        "root_delay_ns": None if time is None else 2 * time.half_rtt_ns,
        "root_dispersion_ns": None if time is None else time.bound_ns - time.half_rtt_ns,
        "masters": [
            _master(edge.addresses[m.index], m, client.best is m, now_ns) for m in client.masters
        ],
    }  # fmt: skip


def _master(address: str, master: Master, best: bool, now_ns: int) -> dict[str, Any]:
    said, found = master.said, master.estimator.last
    contracts = master.contracts.values()
    row = {
        "address": address, "best": best, "alive": master.alive, "timing": master.timing,
        "grants": {c.terms.type.name.lower(): c.standing.value for c in contracts},
        "denied": sum(c.denied for c in contracts), "lost": master.lost,
        "timeouts": sum(c.timeouts for c in contracts), "steps": master.estimator.steps,
    }  # fmt: skip
    if said is not None:
        whose = Grandmaster.of(said)
        row |= whose._asdict() | {"identity": f"{whose.identity:016x}"}
    if found is not None:
        row |= {
            "half_rtt_ns": found.half_rtt_ns, "spread_ns": found.spread_ns, "slope": found.slope,
            "points": found.points, "bound_ns": found.bound_ns(now_ns),
        }  # fmt: skip
    return row


def _path(core: MeshHost, path: ClockPath) -> dict[str, Any]:
    edge = core.edges.get(path.number)
    pair = path.estimator.last
    if any(path.hardware):
        pair = edge.pair if edge is not None else None
    watched = core.mover.paths.get(path.number)
    row = {
        "netdev": path.key.netdev, "peer": path.key.address, "host": path.key.host,
        "rdma": path.rdma,
        "steps": path.estimator.steps, "queued": path.estimator.queued,
        "shorter_than_least": path.estimator.shorter,
        "surplus_ns": None if edge is None else edge.surplus_ns,
        "stamps": ["hardware" if kind else "software" for kind in path.hardware],
        "judged": "watching" if watched is None else watched.state.value,
        "source_port": path.taken.port, "wanted_port": 0 if watched is None else watched.port,
        "port_refused": path.taken.refused, "moves": 0 if watched is None else watched.moves,
    }  # fmt: skip
    if pair is None:
        names = (
            "offset_ns", "slope", "half_rtt_ns", "spread_ns", "kept", "window_s", "at_ns",
            "way_skew_ns", *_WAYS,
        )  # fmt: skip
        return row | dict.fromkeys(names)
    return row | _ways(core, edge, pair) | {
        "offset_ns": pair.base_ns + pair.apart_ns, "slope": pair.slope,
        "half_rtt_ns": pair.half_rtt_ns, "spread_ns": pair.spread_ns, "kept": list(pair.kept),
        "window_s": pair.window_ns / SECOND, "at_ns": pair.at_ns, "way_skew_ns": pair.skew_ns,
    }  # fmt: skip


def _phc(phcs: Phcs, number: int) -> dict[str, Any]:
    source = phcs.by_number[number]
    crossing, line = source.crossing, source.crossing.line
    return {
        "phc": number, "way": source.device.way if source.device else None,
        "why": source.why or None, "steps": crossing.steps, "adjusted": crossing.adjusted,
        "too_slow": crossing.wide, "half_ns": line.half_ns if line else None,
        "spread_ns": line.spread_ns if line else None,
        "slope": line.line.slope if line else None,
    }  # fmt: skip


_WAYS = ("out_ns", "back_ns", "way_bound_ns")


def _ways(core: MeshHost, edge: Edge | None, pair: Pair) -> dict[str, float | None]:
    """The least delays of the two ways in fabric time, and how far off these may be.

    Half the round trip is what each way takes if they are alike; the surplus is by how much they
    are not. It is that of the mesh, so it is as right as both ends' fabric time.
    """
    surplus = None if edge is None else edge.surplus_ns
    if edge is None or surplus is None:
        return dict.fromkeys(_WAYS)
    theirs, status = edge.time, core.status
    # Times of two references are two times.
    same = theirs is not None and theirs.reference == status.reference
    ends = status.bound_ns + theirs.bound_ns if theirs is not None and same else math.inf
    bound = ends + pair.sigmas * pair.spread_ns
    return {
        "out_ns": pair.half_rtt_ns + surplus, "back_ns": pair.half_rtt_ns - surplus,
        "way_bound_ns": bound if math.isfinite(bound) else None,
    }  # fmt: skip

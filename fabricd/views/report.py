"""What the daemon says about itself: JSON for the control socket, the snapshot for the metrics."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabricd import __version__
from fabricd.clock import status_reader
from fabricd.delay.watch import document as delay_document
from fabricd.detect.locate import port_name
from fabricd.operate.detectors import DETECTORS
from fabricd.probes.records import LinkRow, PathRow
from fabricd.probes.totals import LinkTotals, is_heard
from fabricd.state import model
from fabricd.steer.policy import FULL
from fabricd.views import rdma
from fabricd.views.host_check import CARRIES
from fabricd.views.reasons import down_reason, reason
from fabricd.views.services import Services
from telemetry.snapshot import (
    DaemonSnapshot,
    HostSnapshot,
    LinkInfo,
    LinkSnapshot,
    Located,
    ProberSnapshot,
    ProbeTotals,
)

if TYPE_CHECKING:
    from fabricd.runtime.host import Host
    from fabricd.state.model import Link


def wall_of(mono_ns: int) -> float:
    """CLOCK_MONOTONIC ns as seconds of CLOCK_REALTIME."""
    return (time.time_ns() - time.monotonic_ns() + mono_ns) / 1e9


def probe_totals(
    link: int, rows: Sequence[PathRow], counted: LinkTotals, misses: int, now: int
) -> ProbeTotals:
    """One link's packets, and the round trips of its paths that are heard.

    Args:
        link: its index.
        rows: the prober's table as it is; empty: there is no prober now.
        counted: its packets so far.
        misses: so many in a row make a path silent.
        now: CLOCK_MONOTONIC ns.
    """
    own = [row for row in rows if row.link == link]
    heard = [row for row in own if is_heard(row, misses, now)]
    smoothed = [row.rtt_smoothed_ns for row in heard if row.rtt_smoothed_ns]
    least = [row.rtt_min_ns for row in heard if row.rtt_min_ns]
    return ProbeTotals(
        sent=counted.sent,
        received=counted.received,
        lost_tx=counted.lost_tx,
        lost_rx=counted.lost_rx,
        rtt_s=statistics.median(smoothed) / 1e9 if smoothed else None,
        rtt_min_s=min(least) / 1e9 if least else None,
        paths=len(own),
        paths_silent=(
            sum(row.rx_missed >= misses or row.tx_missed >= misses for row in own) if rows else None
        ),
    )


def snapshot(host: Host, services: Services | None = None) -> HostSnapshot:
    """An immutable snapshot for the metrics endpoint.

    Args:
        host: all that its parts know.
        services: around it; None: there is none of them.
    """
    services = services or Services()
    escalation, clock = services.escalation(), Path(host.config.paths.run_dir)
    return HostSnapshot(
        host.config.host.name,
        link_snapshots(host),
        _prober(host),
        _daemon(host, services),
        host.jobs.plugin(),
        services.clock.update(status_reader.snapshot(clock)),
        silent_peers(
            host.engine.paths, host.prober.tables.rows(recent=True) or (), host.engine.rules.misses,
            time.monotonic_ns(),
        ),
        tuple(
            Located(b.kind.value, b.element, b.way.value)
            for b in host.detectors.localization.located()
        ),
        escalation.snapshot() if escalation else None,
    )  # fmt: skip


def link_snapshots(host: Host) -> tuple[LinkSnapshot, ...]:
    """All links, by index."""
    now = time.monotonic_ns()
    rows = host.prober.tables.rows(recent=True) or ()
    weights, wanted = host.publisher.weights.rail_weights(), host.publisher.weights.wanted_weights()
    leaves, name = host.detectors.localization.places.topology, host.config.host.name
    misses, devices = host.engine.rules.misses, host.planner.devices()
    links = []
    for link in host.engine.links:
        health = link.health
        nic = host.nics.nics.get(link.netdev)
        links.append(
            LinkSnapshot(
                link.netdev,
                link.rail,
                health.state,
                carrier=link.carrier,
                flaps=host.carriers.tracker.totals.get(link.netdev, 0),
                last_change_wall_s=wall_of(health.since_ns) if health.since_ns else None,
                penalty=health.damping.penalty(now),
                weight=weights.get(link.netdev, FULL) / FULL,
                wanted_weight=wanted[link.netdev] / FULL if link.netdev in wanted else None,
                outages=host.evaluator.outages[link.netdev],
                info=LinkInfo(
                    port_name((name, link.rail)),
                    nic.device if nic else "",
                    nic.rdma_device if nic else "",
                    _speed(nic.gauge("speed") if nic else None),
                    nic.driver if nic else "",
                    leaves.leaf((name, link.rail)),
                ),
                drained=link.netdev in host.engine.overrides.drained,
                maintenance=link.netdev in host.engine.overrides.planned,
                errors=dict(nic.totals) if nic else {},
                counters_fresh=nic is not None and not nic.stale(now),
                flaps_exact=nic.downs.state.exact if nic and nic.witness else None,
                speed_ratio=link.speed_ratio,
                risk=link.forecast.risk if link.forecast else None,
                probe=probe_totals(
                    link.index, rows, host.prober.counts.of(link.netdev), misses, now
                ),
                probe_state=host.detectors.probing.state(link.netdev),
                mtu_black_hole=bool(link.mtu),
                rdma=rdma.totals(host, link, now),
                plugin=host.jobs.totals.rail(link.netdev),
                queueing_s=_queueing(host, link.index),
                slow=host.detectors.delay.slow(link.netdev),
                slow_claim_uid=host.detectors.delay.claim_uid(link.netdev),
                present=None if devices is None else link.netdev in devices,
                down_reason=found.word if (found := down_reason(host, link)) else "",
            )
        )
    return tuple(links)


def silent_peers(
    paths: Sequence[model.Path], rows: Sequence[PathRow], misses: int, now: int
) -> dict[str, bool]:
    """Host → whether it was heard at any time, and is silent on all rails now without a bye.

    Empty without rows: nobody can tell then.
    """
    heard: set[str] = set()
    silent: set[str] = set()
    for row in rows:
        path = paths[row.index]
        (heard if path.gone or is_heard(row, misses, now) else silent).add(path.spec.peer)
    known = {path.spec.peer for path in paths if path.heard_ever}
    return {peer: peer in known and peer not in heard for peer in sorted(heard | silent)}


def _speed(bits: float | None) -> str:
    if bits is None:
        return ""
    return f"{bits / 1e9:g}G" if bits >= 1e9 else f"{bits / 1e6:g}M"


def _queueing(host: Host, link: int) -> dict[str, float]:
    queueing = host.detectors.delay.view.queueing_ns(link)
    return {} if queueing is None else {"rx": queueing[0] / 1e9, "tx": queueing[1] / 1e9}


def _prober(host: Host) -> ProberSnapshot:
    header = host.prober.feed.header()
    counted = host.prober.counts.prober
    counted.update(header)
    now = time.monotonic_ns()
    return ProberSnapshot(
        up=header is not None,
        heartbeat_age_s=max(0, now - header.heartbeat_ns) / 1e9 if header else None,
        restarts=host.prober.feed.restarts,
        stalls=counted.stalls,
        stall_s=counted.stall_ns / 1e9,
        refused=counted.refused,
        synchronized=header is not None and header.synchronized,
        due_times_refused=counted.due_times_refused,
        clock_read_s=header.clock_read_ns / 1e9 if header else 0.0,
    )


def group_modes(host: Host) -> dict[str, str]:
    """Group → the mode in effect on its links."""
    groups = {link.group for link in host.config.links if link.group}
    return {group: host.publisher.modes.of(group).name.lower() for group in sorted(groups)}


def refused(host: Host, services: Services) -> dict[str, int]:
    """Inputs refused, by source."""
    around = {name: count() for name, count in services.refused.items()}
    return around | {"stats_page": host.jobs.refused, "ring": host.prober.feed.refused}


def _daemon(host: Host, services: Services) -> DaemonSnapshot:
    source = services.source
    return DaemonSnapshot(
        version=__version__,
        mode=host.publisher.modes.effective.name.lower(),
        start_wall_s=services.start_wall_s,
        last_cycle_wall_s=host.evaluator.last_cycle_wall_s,
        timeline_events=host.events.recorder.stored,
        timeline_failures=host.events.recorder.failures,
        timeline_waiting=host.events.recorder.waiting,
        timeline_dropped=host.events.recorder.dropped,
        timeline_bytes=host.events.recorder.size_bytes,
        timeline_max_bytes=int(host.config.timeline.max_mb * 1e6),
        plugin_events_left_out=host.jobs.suppressed,
        verdicts_held=host.engine.receive_path.held + host.engine.progress.held,
        steer_generation=host.publisher.page.generation,
        groups={g: mode != "observe" for g, mode in group_modes(host).items()},
        config_hash=source.hash if source else "",
        policy_hash=source.policy if source else "",
        config_ok=not (source and source.problems),
        config_loaded_wall_s=source.loaded_wall_s if source else None,
        detectors={name: name not in host.engine.overrides.off for name in DETECTORS},
        refused=refused(host, services),
        metrics_bind_failures=services.endpoint().failures,
        stats_entries=host.jobs.report.entries,
        stats_complete=not host.jobs.report.partial,
    )


def status(host: Host, services: Services | None = None) -> dict[str, Any]:
    """``{"op": "status"}``; arguments as for `snapshot`."""
    services = services or Services()
    shot, escalation, endpoint = (
        snapshot(host, services),
        services.escalation(),
        services.endpoint(),
    )
    now = time.monotonic_ns()
    states: dict[str, int] = {}
    for link in shot.links:
        states[link.state.name.lower()] = states.get(link.state.name.lower(), 0) + 1
    modes = host.publisher.modes
    return {
        "host": shot.host,
        "version": shot.daemon.version,
        "mode": shot.daemon.mode,
        "promoted": modes.promoted.name.lower(),
        "groups": group_modes(host),
        "stop_file": modes.stopped,
        "started_wall_s": shot.daemon.start_wall_s,
        "links": states,
        "not_carrying": [
            _brief(host, link, now)
            for link in host.engine.links
            if link.health.state.name.lower() not in CARRIES
        ],
        "silent_hosts": sorted(host.engine.silent_hosts),
        "unwatched": _unwatched(host, now),
        "missing_interfaces": dict(host.detectors.interfaces.missing),
        "mtu_black_holes": {x.netdev: x.mtu for x in host.engine.links if x.mtu},
        "prober": {
            "up": shot.prober.up,
            "restarts": shot.prober.restarts,
            "stalls": shot.prober.stalls,
            "refused": dict(shot.prober.refused),
        },
        "timeline": {
            "stored": shot.daemon.timeline_events,
            "waiting": shot.daemon.timeline_waiting,
            "failures": shot.daemon.timeline_failures,
            "dropped": shot.daemon.timeline_dropped,
        },
        "plugin": {"processes": shot.plugin.processes, "errors": shot.plugin.errors},
        "steer_page": {
            "generation": host.publisher.page.generation,
            "write_errors": host.publisher.page.write_errors,
        },
        "counters": {x.netdev: why(host, x.netdev, now) for x in shot.links},
        "at_risk": [x.netdev for x in host.engine.links if x.forecast and x.forecast.named],
        "refused": dict(shot.daemon.refused),
        "stats": asdict(host.jobs.report),
        "metrics": asdict(endpoint) | {"text": str(endpoint)},
        "receive_path": {
            "backlogs": services.receive_note(),
            "verdicts_held": host.engine.receive_path.held,
        },
        "payload": {
            "byte_counters": services.payload_note(),
            "verdicts_held": host.engine.progress.held,
        },
        "ib_ports": services.ports_note(),
        "rdma": {
            x.netdev: rdma.text(host, x, now)
            for x in host.engine.links
            if host.engine.rdma.link(x.netdev) is not None
        },
        "lldp": host.detectors.localization.lldp.note
        if host.detectors.localization.lldp
        else "off",
        "operator": host.operator.document(),
        "broker": escalation.document() if escalation else None,
    }


def _unwatched(host: Host, now: int) -> dict[str, str]:
    """Link → why probes say nothing about it; links that probes watch are left out."""
    said = {x.netdev: host.detectors.probing.unwatched(x.netdev, now) for x in host.engine.links}
    return {netdev: why for netdev, why in said.items() if why}


def _brief(host: Host, link: Link, now: int) -> dict[str, Any]:
    """A link that does not carry as it should, for ``status``."""
    since, overrides = link.health.since_ns, host.engine.overrides
    return {
        "netdev": link.netdev,
        "state": link.health.state.name.lower(),
        "reason": reason(host, link),
        "since_s": round((now - since) / 1e9, 3) if since else None,
        "planned": link.netdev in overrides.drained or link.netdev in overrides.planned,
    }


def links(host: Host) -> list[dict[str, Any]]:
    """``{"op": "links"}``: one object a link, with its paths."""
    now = time.monotonic_ns()
    # What an earlier table says is of no use: its round trips are of then.
    by_index: dict[int, PathRow] = {
        row.index: row for row in host.prober.tables.rows(recent=True) or ()
    }
    groups = {table.netdev: table.group for table in host.config.links}
    rows: list[LinkRow] = host.prober.feed.links() or []
    leaf = host.detectors.localization.places.topology.leaf_of
    plugs = (
        host.detectors.localization.lldp.neighbours() if host.detectors.localization.lldp else {}
    )
    out = []
    for link, known in zip(link_snapshots(host), host.engine.links, strict=True):
        health = known.health
        out.append(
            {
                "netdev": link.netdev,
                "rail": link.rail,
                "leaf": leaf.get((host.config.host.name, link.rail), ""),
                "leaf_port": plugs[link.netdev].port if link.netdev in plugs else "",
                "address": next((r.address for r in rows if r.index == known.index), None),
                "state": link.state.name.lower(),
                "reason": reason(host, known),
                "down_reason": link.down_reason,
                "since_s": round((now - health.since_ns) / 1e9, 3) if health.since_ns else None,
                "carrier": link.carrier,
                "probe_state": link.probe_state.value if link.probe_state else None,
                "rdma": rdma.document(host, known, now),
                "mtu_black_hole": known.mtu,
                "unwatched": host.detectors.probing.unwatched(link.netdev, now),
                "admin_up": known.admin_up,
                "flaps": link.flaps,
                "flaps_exact": link.flaps_exact,
                "risk": link.risk,
                "named": bool(known.forecast and known.forecast.named),
                "errors": dict(link.errors),
                "findings": [str(finding) for finding in known.counters],
                "counters": why(host, link.netdev, now) or "read",
                "flaps_last_hour": health.damping.hourly(now),
                "penalty": round(link.penalty, 1),
                "suppressed": health.damping.is_suppressed(now),
                "weight": link.weight,
                "mode": host.publisher.mode_of(link.netdev).name.lower(),
                "group": groups.get(link.netdev) or "",
                "drained": link.drained,
                "maintenance": link.maintenance,
                "condition": host.detectors.delay.condition(link.netdev).now.value,
                "delay": delay_document(host.detectors.delay.view.link_figures(known.index)),
                "rtt_us": None if link.probe.rtt_s is None else round(link.probe.rtt_s * 1e6, 1),
                "probes": {
                    "sent": link.probe.sent,
                    "received": link.probe.received,
                    "lost_tx": link.probe.lost_tx,
                    "lost_rx": link.probe.lost_rx,
                },
                "paths": [
                    _path(p, by_index.get(p.index), host.engine.rules.misses, now)
                    | {"rdma": rdma.path_state(host, p)}
                    | {"delay": delay_document(host.detectors.delay.view.path_figures(p.index))}
                    for p in host.engine.paths
                    if p.spec.link == known.index
                ],
            }
        )
    return out


def why(host: Host, netdev: str, now: int) -> str:
    """Why the counters of a link's NIC are not read; empty: they are."""
    nic = host.nics.nics.get(netdev)
    return host.nics.why_stale(nic, now) if nic else "no such link"


def _path(
    path: model.Path,
    row: PathRow | None,
    misses: int,
    now: int,
) -> dict[str, Any]:
    heard = row is not None and is_heard(row, misses, now)
    return {
        "peer": path.spec.peer,
        "peer_rail": path.spec.peer_rail,
        "address": path.spec.address,
        "state": path.health.state.name.lower(),
        "heard": heard,
        "rtt_us": round(row.rtt_smoothed_ns / 1e3, 1)
        if row and heard and row.rtt_smoothed_ns
        else None,
        "rx_missed": row.rx_missed if row else None,
        "tx_missed": row.tx_missed if row else None,
        "gone": path.gone,
    }

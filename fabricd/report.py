"""What the daemon says about itself: JSON for the control socket, the snapshot for the metrics."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabricd import __version__
from fabricd.clock import document as clock_document
from fabricd.delay.watch import document as delay_document
from fabricd.operate.detectors import DETECTORS
from fabricd.probes.records import LinkRow, PathRow
from fabricd.steer.policy import FULL
from telemetry.snapshot import (
    DaemonSnapshot,
    HostSnapshot,
    LinkSnapshot,
    ProberSnapshot,
    ProbeTotals,
)

if TYPE_CHECKING:
    from fabricd.host import Host


def wall_of(mono_ns: int) -> float:
    """CLOCK_MONOTONIC ns as seconds of CLOCK_REALTIME."""
    return (time.time_ns() - time.monotonic_ns() + mono_ns) / 1e9


def probe_totals(link: int, rows: Sequence[PathRow], silent: int) -> ProbeTotals:
    """The packets of all paths of one link."""
    own = [row for row in rows if row.link == link]
    smoothed = [row.rtt_smoothed_ns for row in own if row.rtt_smoothed_ns]
    least = [row.rtt_min_ns for row in own if row.rtt_min_ns]
    return ProbeTotals(
        sent=sum(row.sent for row in own),
        received=sum(row.received for row in own),
        lost_tx=sum(row.tx_lost for row in own),
        lost_rx=sum(row.rx_lost for row in own),
        rtt_s=statistics.median(smoothed) / 1e9 if smoothed else None,
        rtt_min_s=min(least) / 1e9 if least else None,
        paths=len(own),
        paths_silent=silent,
    )


def snapshot(host: Host) -> HostSnapshot:
    """An immutable picture for the metrics endpoint."""
    now = time.monotonic_ns()
    rows = host.path_rows(recent=True) or host.last_path_rows
    weights = host.rail_weights()
    links = []
    for link in host.engine.links:
        silent = sum(
            row.rx_missed >= host.engine.rules.misses or row.tx_missed >= host.engine.rules.misses
            for row in rows
            if row.link == link.index
        )
        health = link.health
        nic = host.nics.nics.get(link.netdev)
        links.append(
            LinkSnapshot(
                link.netdev,
                link.rail,
                health.state,
                carrier=link.carrier,
                flaps=host.book.totals.get(link.netdev, 0),
                last_change_wall_s=wall_of(health.since_ns) if health.since_ns else None,
                penalty=health.damping.penalty(now),
                weight=weights.get(link.netdev, FULL) / FULL,
                drained=link.netdev in host.engine.orders.drained,
                maintenance=link.netdev in host.engine.orders.planned,
                errors=dict(nic.totals) if nic else {},
                counters_fresh=nic is not None and not nic.stale(now),
                flaps_exact=nic.downs.state.exact if nic and nic.witness else None,
                risk=link.forecast.risk if link.forecast else None,
                probe=probe_totals(link.index, rows, silent),
                plugin=host.jobs.totals.rail(link.netdev),
                queueing_s=_queueing(host, link.index),
                slow=host.delay.slow(link.netdev),
            )
        )
    return HostSnapshot(
        host.config.host.name, tuple(links), _prober(host), _daemon(host),
        host.jobs.totals.plugin(), clock_document.snapshot(Path(host.config.paths.run_dir)),
    )  # fmt: skip


def _queueing(host: Host, link: int) -> dict[str, float]:
    queueing = host.delay.view.queueing_ns(link)
    return {} if queueing is None else {"rx": queueing[0] / 1e9, "tx": queueing[1] / 1e9}


def _prober(host: Host) -> ProberSnapshot:
    header = host.feed.header()
    if header is None:
        return ProberSnapshot(restarts=host.feed.restarts)
    return ProberSnapshot(
        up=True,
        heartbeat_age_s=max(0, time.monotonic_ns() - header.heartbeat_ns) / 1e9,
        restarts=host.feed.restarts,
        stalls=header.stalls,
        stall_s=header.stall_ns / 1e9,
        refused={reason.value: count for reason, count in header.refused.items()},
        synchronized=header.synchronized,
        promises_refused=header.promises_refused,
        clock_read_s=header.clock_read_ns / 1e9,
    )


def group_modes(host: Host) -> dict[str, str]:
    """Group → the mode in effect on its links."""
    groups = {link.group for link in host.config.links if link.group}
    return {group: host.modes.of(group).name.lower() for group in sorted(groups)}


def _daemon(host: Host) -> DaemonSnapshot:
    source = host.source
    return DaemonSnapshot(
        version=__version__,
        mode=host.modes.effective.name.lower(),
        start_wall_s=host.start_wall_s,
        last_cycle_wall_s=host.last_cycle_wall_s,
        timeline_events=host.recorder.stored,
        timeline_failures=host.recorder.failures,
        timeline_waiting=host.recorder.waiting,
        timeline_dropped=host.recorder.dropped,
        timeline_bytes=host.recorder.size_bytes,
        verdicts_held=host.engine.receive_path.held,
        steer_generation=host.page.generation,
        groups={g: mode != "observe" for g, mode in group_modes(host).items()},
        config_hash=source.hash if source else "",
        policy_hash=source.policy if source else "",
        config_ok=not (source and source.problems),
        config_loaded_wall_s=source.loaded_wall_s if source else None,
        detectors={name: name not in host.engine.orders.off for name in DETECTORS},
        refused=host.refused(),
        metrics_bind_failures=host.endpoint.failures,
    )


def status(host: Host) -> dict[str, Any]:
    """``{"op": "status"}``."""
    shot = snapshot(host)
    now = time.monotonic_ns()
    states: dict[str, int] = {}
    for link in shot.links:
        states[link.state.name.lower()] = states.get(link.state.name.lower(), 0) + 1
    modes = host.modes
    return {
        "host": shot.host,
        "version": shot.daemon.version,
        "mode": shot.daemon.mode,
        "promoted": modes.promoted.name.lower(),
        "groups": group_modes(host),
        "stop_file": modes.stopped,
        "started_wall_s": shot.daemon.start_wall_s,
        "links": states,
        "silent_hosts": sorted(host.engine.silent_hosts),
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
        "steer_page": {"generation": host.page.generation, "write_errors": host.page.write_errors},
        "counters": {x.netdev: why(host, x.netdev, now) for x in shot.links},
        "at_risk": [x.netdev for x in host.engine.links if x.forecast and x.forecast.named],
        "refused": dict(shot.daemon.refused),
        "metrics": asdict(host.endpoint) | {"text": str(host.endpoint)},
        "receive_path": {
            "backlogs": host.receive_note(),
            "verdicts_held": shot.daemon.verdicts_held,
        },
        "ib_ports": host.ib_note,
        "lldp": host.where.lldp.note if host.where.lldp else "off",
        "operator": host.desk.document(host),
    }


def links(host: Host) -> list[dict[str, Any]]:
    """``{"op": "links"}``: one object a link, with its paths."""
    shot = snapshot(host)
    now = time.monotonic_ns()
    by_index: dict[int, PathRow] = {row.index: row for row in host.last_path_rows}
    groups = {table.netdev: table.group for table in host.config.links}
    rows: list[LinkRow] = host.feed.links() or []
    leaf = host.where.places.topology.leaf_of
    plugs = host.where.lldp.neighbours() if host.where.lldp else {}
    out = []
    for link, known in zip(shot.links, host.engine.links, strict=True):
        health = known.health
        out.append(
            {
                "netdev": link.netdev,
                "rail": link.rail,
                "leaf": leaf.get((host.config.host.name, link.rail), ""),
                "leaf_port": plugs[link.netdev].port if link.netdev in plugs else "",
                "address": next((r.address for r in rows if r.index == known.index), None),
                "state": link.state.name.lower(),
                "reason": health.reason,
                "since_s": round((now - health.since_ns) / 1e9, 3) if health.since_ns else None,
                "carrier": link.carrier,
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
                "mode": host.mode_of(link.netdev).name.lower(),
                "group": groups.get(link.netdev) or "",
                "drained": link.drained,
                "maintenance": link.maintenance,
                "condition": host.delay.condition(link.netdev).now.value,
                "delay": delay_document(host.delay.view.link_figures(known.index)),
                "rtt_us": None if link.probe.rtt_s is None else round(link.probe.rtt_s * 1e6, 1),
                "probes": {
                    "sent": link.probe.sent,
                    "received": link.probe.received,
                    "lost_tx": link.probe.lost_tx,
                    "lost_rx": link.probe.lost_rx,
                },
                "paths": [
                    _path(p, by_index.get(p.index))
                    | {"delay": delay_document(host.delay.view.path_figures(p.index))}
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


def _path(path: Any, row: PathRow | None) -> dict[str, Any]:  # noqa: ANN401 - engine.Path
    return {
        "peer": path.spec.peer,
        "peer_rail": path.spec.peer_rail,
        "address": path.spec.address,
        "state": path.health.state.name.lower(),
        "rtt_us": round(row.rtt_smoothed_ns / 1e3, 1) if row and row.rtt_smoothed_ns else None,
        "rx_missed": row.rx_missed if row else None,
        "tx_missed": row.tx_missed if row else None,
        "gone": path.gone,
    }

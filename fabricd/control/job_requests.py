"""What can be asked about training jobs, their migrations and other hosts. Pure but for `Host`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fabricd.config.addresses import address_text
from fabricd.control.server import RequestError
from fabricd.jobs import stall
from fabricd.jobs.stall import JobLink, Surroundings

if TYPE_CHECKING:
    from fabricd.escalate.service import Escalation
    from fabricd.runtime.host import Host

Row = dict[str, Any]

NO_BROKER = (
    "no [broker] in fabricd.toml: this host takes no part in escalation, and no fabric-compute "
    "tells it of jobs (fabricctl top shows jobs that use the plugin)"
)
MOST_MIGRATIONS = 1000
HISTORY = ("peer", "fence", "migration")
"""Kinds of rows that may concern another host."""
HISTORY_READ, HISTORY_ROWS = 1000, 30
LOOK_S = 1.0
"""Between the two looks of ``explain job``: stats pages are published many times within it."""


def required(escalation: Escalation | None) -> Escalation:
    """The connection to the control fabric. Raises `RequestError`: there is none."""
    if escalation is None:
        raise RequestError(NO_BROKER)
    return escalation


def jobs(host: Host, escalation: Escalation | None, live: Row) -> Row:
    """``fabricctl jobs``: jobs that have a part here, by whoever knows of them.

    Args:
        host: whose jobs.
        escalation: knows of fabric-runs here, and what fabric-compute says; None: no broker.
        live: what ``jobs`` answers: processes that use the plugin.
    """
    known = {
        "host": host.config.host.name,
        "broker": escalation is not None,
        "plugin_jobs": plugin_jobs(live),
        "incomplete": live.get("scan", {}).get("partial", ""),
        "left_out": live.get("left_out", 0),
    }
    if escalation is None:
        return known | {
            "connected": False, "why_not_connected": NO_BROKER, "computes": {}, "jobs": []
        }  # fmt: skip
    now = time.monotonic_ns()
    runs = escalation.jobs.registry.runs
    here = escalation.document()["jobs"]
    found = {row["job"]: row for row in escalation.watch.views.jobs(now)}
    for job in runs.keys() - found.keys():
        found[job] = {"job": job, "phase": "unknown", "reason": "no fabric-compute has said it yet"}
    return known | {
        "connected": escalation.client.connected,
        "why_not_connected": escalation.reason,
        "computes": escalation.watch.views.computes,
        "jobs": [found[job] | {"here": here.get(job)} for job in sorted(found)],
    }


SUMS = ("tx_bytes", "rx_bytes", "in_flight_bytes", "failovers", "stall_ns")
"""Of a rail in a stats page; of a job the sum over its processes and rails."""


def plugin_jobs(live: Row) -> list[Row]:
    """Each user's jobs that use the plugin here: totals since their processes began."""
    found: dict[tuple[str, int], Row] = {}
    for process in live["processes"]:
        key = process["job"], process["uid"]
        start = {"job": key[0], "uid": key[1], "processes": 0, "errors": 0, "following": 0,
                 "rails": [], "dead_rails": []} | dict.fromkeys(SUMS, 0)  # fmt: skip
        job = found.setdefault(key, start)
        job["processes"] += 1
        job["errors"] += process["errors"]
        job["following"] += bool(process["following"])
        for rail in process["rails"]:
            for name in SUMS:
                job[name] += rail[name]
            names = job["rails"], *([job["dead_rails"]] if rail["dead_paths"] else ())
            for listed in names:
                if rail["netdev"] not in listed:
                    listed.append(rail["netdev"])
    return [found[key] for key in sorted(found)]


def migrations(host: Host, escalation: Escalation, rows: Sequence[Row], limit: int) -> Row:
    """``fabricctl migrations``. ``rows``: of kind ``migration``, oldest first."""
    from fabricd.escalate.job_views import migration

    return {
        "host": host.config.host.name,
        "connected": escalation.client.connected,
        "why_not_connected": escalation.reason,
        "migrations": [migration(row) for row in reversed(rows)][:limit],
    }


def explain_host(host: Host, escalation: Escalation, name: str, rows: Sequence[Row]) -> Row:
    """``fabricctl explain host NAME``. ``rows``: of the kinds `HISTORY`, oldest first.

    Raises:
        RequestError: this host neither probes that host nor shares a job with it.
    """
    now, me = time.monotonic_ns(), host.config.host.name
    views = escalation.watch.views
    about = [row for row in rows if concerns(row, name)]
    probed = {peer.host for peer in host.config.peers}
    known = {me} | probed | views.hosts()
    if name not in known and not about:
        names = ", ".join(sorted(known)[:20])
        raise RequestError(f'no host "{name[:64]}" is a peer or shares a job; known: {names}')
    fences = escalation.jobs.fences
    applied = set(fences.acknowledged())
    return {
        "host": name,
        "asked": me,
        "connected": escalation.client.connected,
        "why_not_connected": escalation.reason,
        "computes": views.computes,
        "probes": probes(host, name) if name in probed else None,
        "jobs": views.evidence(name, now),
        "fences": [
            {
                "id": fence.id, "job": fence.job, "incarnation": fence.incarnation,
                "reason": fence.reason, "applied": fence.id in applied,
            }
            for fence in fences.all()
            if fence.host == name
        ],
        "history": about[-HISTORY_ROWS:],
    }  # fmt: skip


def check_job(name: str, found: Row, uid: int | None) -> None:
    """Whether it is one user's job that uses the plugin here; ``found``: what ``jobs`` answers.

    Raises:
        RequestError: no process of such a job runs here, or those of several users do.
    """
    uids = {process["uid"] for process in found["processes"] if process["job"] == name}
    if uid is not None and uid not in uids:
        raise RequestError(f'no job "{name[:64]}" of uid {uid} uses the plugin on this host')
    if uid is None and len(uids) > 1:
        listed = ", ".join(map(str, sorted(uids)[:20]))
        raise RequestError(f'several users have a job "{name[:64]}": give --uid, one of {listed}')
    known = sorted({process["job"] for process in found["processes"]})
    if name not in known:
        names = ", ".join(known[:20]) or "none"
        raise RequestError(f'no job "{name[:64]}" uses the plugin on this host; known: {names}')


def explain_job(host: Host, name: str, before: Row, after: Row, uid: int | None) -> Row:
    """``fabricctl explain job NAME``. ``before``, ``after``: two looks at all jobs."""
    where, me = host.detectors.localization, host.config.host.name
    topology = where.places.topology
    around = Surroundings(
        me,
        [
            JobLink(
                link.netdev, link.rail, topology.leaf((me, link.rail)), link.health.state,
                link.health.reason,
            )
            for link in host.engine.links
        ],
        where.located(),
        host.engine.silent_hosts,
        frozenset(path.spec.peer for path in host.engine.paths),
        {
            address_text(entry.address): peer.host
            for peer in host.config.peers
            for entry in peer.addresses
        },
        host.detectors.delay.slow_texts(
            {process["uid"] for process in after["processes"]
             if process["job"] == name and uid in (None, process["uid"])}
        ),
    )  # fmt: skip
    return dict(stall.explain_job(before, after, name, around, uid))


def probes(host: Host, name: str) -> Row:
    """What the probes of this host say of another one now."""
    views = host.prober.tables.views()
    own = [view for view in views or () if view.peer == name and view.heard]
    misses = host.engine.rules.misses
    return {
        "prober": views is not None,
        "silent": name in host.engine.silent_hosts,
        "paths": len(own),
        "paths_silent": sum(view.rx_missed >= misses for view in own),
    }


def concerns(row: Row, name: str) -> bool:
    """Whether a row of the timeline is about that host."""
    data = row.get("data") or {}
    if name in (data.get("host"), data.get("peer_host")):
        return True
    return any(name in str(data.get(key, "")).split(",") for key in ("origins", "targets"))

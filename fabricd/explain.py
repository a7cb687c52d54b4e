"""Why a link is what it is: the evidence of this moment, the rule that decided, what comes next.

Pure but for what it reads from `Host`; times in seconds before (or after) ``now``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fabricd.detect.rules import Class
from fabricd.detect.verdict import healthy, live_peers
from fabricd.operate.desk import windows_of
from fabricd.operate.wishes import Kind
from fabricd.steer.modes import Mode
from fabricd.steer.policy import FULL, weight_of
from telemetry.events import LinkState

if TYPE_CHECKING:
    from fabricd.engine import Link
    from fabricd.host import Host

SEC = 1e9


def explain(host: Host, netdev: str, now: int) -> dict[str, Any]:
    """Everything about one link as JSON.

    Raises:
        KeyError: no such link; the text says which there are.
    """
    engine = host.engine
    link = next((x for x in engine.links if x.netdev == netdev), None)
    if link is None:
        known = ", ".join(x.netdev for x in engine.links)
        raise KeyError(f'no link "{netdev[:32]}"; allowed: {known}')
    health = link.health
    weight = host.rail_weights().get(netdev, FULL)
    return {
        "link": netdev,
        "rail": link.rail,
        "state": health.state.name.lower(),
        "since_s": _ago(health.since_ns, now),
        "reason": health.reason,
        "weight": weight / FULL,
        "rule": _rule(host, link),
        "steering": _steering(host, link, weight),
        "evidence": _evidence(host, link, now),
        "damping": {
            "penalty": round(health.damping.penalty(now), 1),
            "suppressed": health.damping.is_suppressed(now),
            "reuse_in_s": _until(health.damping.reuse_at(now), now),
            "flaps_last_hour": health.damping.hourly(now),
        },
        "next": _next(host, link, now),
        "drain": _wish(host, Kind.DRAIN, netdev, now),
        "maintenance": [host.desk.describe(w, now) for w in windows_of(host.desk, netdev)],
        "detectors_off": sorted(engine.orders.off),
    }


def _rule(host: Host, link: Link) -> dict[str, str]:
    """The rule that holds the link in its state, with the parameters it was judged by."""
    config, health = host.config, link.health
    hold, damping = config.hold, config.damping
    probes = (
        f"[probe] misses = {config.probe.misses}, link_interval_ms = "
        f"{config.probe.link_interval_ms}"
    )
    rules = {
        LinkState.UNKNOWN: ("never-seen-up", "no carrier was ever seen: not a failure", ""),
        LinkState.UP: ("healthy", "carrier, and nothing speaks against it", ""),
        LinkState.SUSPECT: (
            "probe-doubt",
            "misses over two peers without a verdict for 0.2 s; carries as before",
            probes,
        ),
        LinkState.DOWN: _hard(health.reason)
        if health.hard
        else (
            "probe-link",
            "every path to a living peer misses, over two peers or more",
            probes,
        ),
        LinkState.HOLD: (
            "hold-down",
            "back only when nothing bad was seen for the hold-down and damping lets it go",
            f"[hold] hold_down_s = {hold.hold_down_s:g}; [damping] reuse = {damping.reuse:g}, "
            f"half_life_s = {damping.half_life_s:g}, max_suppress_s = {damping.max_suppress_s:g}",
        ),
        LinkState.PROBATION: (
            "probation",
            "carries in full, and is watched",
            f"[hold] probation_s = {hold.probation_s:g}",
        ),
        LinkState.DEGRADED: (
            ("counters", "error counters above the rates of the rules table: half the weight", "")
            if any(str(f) in health.reason for f in link.counters)
            else ("loss", "probes are lost for long over two peers: half the weight", "")
        ),
        LinkState.ADMIN: (
            ("drained", "an operator drained it", "")
            if link.netdev in host.engine.orders.drained
            else ("administrator", "the interface is administratively down: no failure", "")
        ),
    }
    name, text, parameters = rules[health.state]
    out = {"name": name, "text": text}
    return out | {"parameters": parameters} if parameters else out


def _hard(reason: str) -> tuple[str, str, str]:
    if reason.startswith("carrier"):
        return "carrier", "a lost carrier takes a link down at once", ""
    return "counters", "a counter of which any increase is a fault: down at once", ""


def _steering(host: Host, link: Link, weight: int) -> list[str]:
    """Why the page gives it the weight it has, where that does not follow from the state."""
    said = []
    wanted = {rail.netdev: rail.weight for rail in host.engine.plan().rails}[link.netdev]
    if host.mode_of(link.netdev) is Mode.OBSERVE:
        why = "the stop file is present" if host.modes.stopped else "mode observe"
        said.append(f"{why}: steered it would weigh {100 * wanted // FULL} %")
    elif wanted != weight_of(link.health.state, link.carrier):
        said.append("kept in full: no other link would carry")
    if blamed := host.refused_links().get(link.netdev):
        said.append(
            f"probes blame it ({blamed}) but may not take it: "
            f"[steer] max_probe_share = {host.config.steer.max_probe_share:g}, or the last rail"
        )
    if not said:
        said.append(f"{100 * weight // FULL} % follows from the state")
    return said


def _evidence(host: Host, link: Link, now: int) -> list[dict[str, Any]]:
    """What each detector says now; ``against`` is True where it speaks against the link."""
    off = host.engine.orders.off
    row = next((r for r in host.feed.links() or () if r.index == link.index), None)
    out = [
        _said(
            "carrier",
            {True: "present", False: "absent", None: "not known"}[link.carrier],
            link.carrier is False,
            _ago(row.last_change_ns, now) if row is not None else None,
            off,
        ),
        _said("administrator", "up" if link.admin_up else "down", not link.admin_up, None, off),
    ]
    if link.port_active is not None:
        text = "active" if link.port_active else "not active"
        out.append(_said("port", text, not link.port_active, None, off))
    for finding in link.counters:
        bad = finding.rule.cls is not Class.CONGESTION
        text = f"{finding} ({finding.rule.why})"
        out.append(_said("counters", text, bad, _ago(finding.since_ns, now), off))
    out.append(_said("loss", link.worse or "none worth telling", bool(link.worse), None, off))
    out.append(_paths_said(host, link, off))
    rows = {r.index: r for r in host.feed.paths() or ()}
    for path in host.engine.paths:
        if path.spec.link != link.index or (probe := rows.get(path.index)) is None:
            continue
        bad = max(probe.rx_missed, probe.tx_missed) >= host.engine.rules.misses
        text = (
            f"{path.spec.peer} rail {path.spec.peer_rail} ({path.spec.address}): "
            f"{path.health.state.name.lower()}, missing in a row rx {probe.rx_missed} "
            f"tx {probe.tx_missed}, lost rx {probe.rx_lost} tx {probe.tx_lost}"
        )
        out.append(_said("probe-path", text, bad, _ago(probe.last_heard_ns, now), off))
    return out


def _paths_said(host: Host, link: Link, off: frozenset[str]) -> dict[str, Any]:
    views = host.views()
    if views is None:
        return _said("probe-link", "no prober: nothing new is concluded", False, None, off)
    own = [v for v in views if v.link == link.index and v.heard]
    alive = live_peers(views, link.index)
    missing = [v for v in own if not v.clean]
    known = [p.index for p in host.engine.paths if p.heard_ever and p.spec.link == link.index]
    text = (
        f"{len(missing)} of {len(own)} paths miss something, {len(alive)} peers live by other links"
    )
    sound = healthy([v for v in views if v.link == link.index], known, alive)
    return _said("probe-link", text, not sound, None, off)


def _said(
    detector: str, text: str, against: bool, age_s: float | None, off: frozenset[str]
) -> dict[str, Any]:
    out: dict[str, Any] = {"detector": detector, "says": text, "against": against, "age_s": age_s}
    return out | {"off": True} if detector in off else out


def _next(host: Host, link: Link, now: int) -> str:
    """What will happen, or what is waited for."""
    health, state = link.health, link.health.state
    due = health.due_at()
    after = "" if due is None else f" in {max(0.0, (due - now) / SEC):.1f} s"
    if link.netdev in host.engine.orders.drained:
        return f"stays out until fabricctl undrain {link.netdev}, or the drain's end"
    if state is LinkState.DOWN:
        return "HOLD once the carrier is back and half of the known paths to living peers are clean"
    if state is LinkState.HOLD:
        if due is None:
            return "waits for a clean moment: a carrier, and no misses on half of its paths"
        return f"PROBATION{after} if nothing bad happens"
    if state is LinkState.PROBATION:
        return f"UP{after} without a fault"
    if state is LinkState.SUSPECT:
        return f"UP{after} without misses" if due is not None else "UP 2 s after the last miss"
    if state is LinkState.DEGRADED:
        return "UP when the loss is gone"
    if state is LinkState.ADMIN:
        return "UNKNOWN, then UP, once the interface is up again"
    return ""


def _wish(host: Host, kind: Kind, target: str, now: int) -> dict[str, Any] | None:
    wish = host.desk.wishes.get(kind, target)
    return None if wish is None else host.desk.describe(wish, now)


def _ago(then: int, now: int) -> float | None:
    return round((now - then) / SEC, 3) if then else None


def _until(then: int, now: int) -> float:
    return round(max(0, then - now) / SEC, 1)

"""Why a link is what it is: the evidence of this moment, the rule that decided, what comes next.

Pure but for what it reads from `Host`; times in seconds before (or after) ``now``.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from fabricd.delay.condition import Condition
from fabricd.delay.watch import NAME as DELAY
from fabricd.delay.watch import document as delay_document
from fabricd.detect.rules import LINK_SPEED, Class
from fabricd.detect.verdict import healthy, live_peers
from fabricd.engine import PORT_INACTIVE
from fabricd.operate.manager import windows_of
from fabricd.operate.overrides import Kind
from fabricd.steer.modes import Mode
from fabricd.steer.policy import FULL, weight_of
from fabricd.views import rdma
from fabricd.views.places import link_places
from fabricd.views.reasons import reason
from telemetry.counters.vocabulary import COUNTERS
from telemetry.events import LinkState

if TYPE_CHECKING:
    from fabricd.links.health import Health
    from fabricd.runtime.host import Host
    from fabricd.state.model import Link

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
    weight = host.publisher.weights.rail_weights().get(netdev, FULL)
    return {
        "link": netdev,
        "rail": link.rail,
        "state": health.state.name.lower(),
        "since_s": _ago(health.since_ns, now),
        "reason": reason(host, link),
        "weight": weight / FULL,
        "rule": _rule(host, link, now),
        "steering": _steering(host, link, weight),
        "evidence": _evidence(host, link, now),
        "unwatched": host.detectors.probing.unwatched(netdev, now),
        **_located(host, link),
        "condition": host.detectors.delay.condition(netdev).now.value,
        "rdma": rdma.document(host, link, now),
        "delay": delay_document(host.detectors.delay.view.link_figures(link.index)),
        "damping": _damping(health, now),
        "next": _next(host, link, now),
        "drain": _override(host, Kind.DRAIN, netdev, now),
        "maintenance": [
            host.operator.manager.describe(w, now)
            for w in windows_of(host.operator.manager, netdev)
        ],
        "detectors_off": sorted(engine.overrides.off),
        "nic": nic(host, link, now),
    }


def _located(host: Host, link: Link) -> dict[str, list[str]]:
    """Faults of this link, and apart from them those at the other ends of its paths."""
    where, name = host.detectors.localization, host.config.host.name
    here, beyond = link_places(where, host.engine, name, link)
    return {"located": [str(b) for b in here], "located_beyond": [str(b) for b in beyond]}


def _damping(health: Health, now: int) -> dict[str, Any]:
    damping, rules = health.damping, health.damping.rules
    waits = health.state in (LinkState.DOWN, LinkState.HOLD)
    return {
        "penalty": round(damping.penalty(now), 1),
        "suppressed": damping.is_suppressed(now),
        "reuse_in_s": _until(damping.reuse_at(now), now),
        "flaps_last_hour": damping.hourly(now),
        "published": damping.publications(now),
        "max_transitions": rules.max_transitions,
        "window_s": rules.window_ns / SEC,
        "return_in_s": _until(damping.return_at(now), now) if waits else 0.0,
    }


def _rule(host: Host, link: Link, now: int) -> dict[str, str]:
    """The rule that holds the link in its state, with the parameters it was judged by."""
    config, health = host.config, link.health
    hold, damping = config.hold, config.damping
    probes = (
        f"[probe] misses = {config.probe.misses}, link_interval_ms = "
        f"{config.probe.link_interval_ms}"
    )
    rules = {
        LinkState.UNKNOWN: _unknown(host.detectors.interfaces.missing.get(link.netdev)),
        LinkState.UP: _healthy(host.detectors.probing.unwatched(link.netdev, now)),
        LinkState.SUSPECT: (
            "probe-doubt",
            "misses over two peers without a verdict for 0.2 s; carries as before",
            probes,
        ),
        LinkState.DOWN: _hard(health.reason)
        if health.fault_was_hard
        else _probed_down(health.reason, probes),
        LinkState.HOLD: (
            "hold-down",
            "back only when nothing bad was seen for the hold-down and damping lets it go",
            f"[hold] hold_down_s = {hold.hold_down_s:g}; [damping] reuse = {damping.reuse:g}, "
            f"half_life_s = {damping.half_life_s:g}, max_suppress_s = {damping.max_suppress_s:g}, "
            f"max_transitions = {damping.max_transitions}, window_s = {damping.window_s:g}",
        ),
        LinkState.PROBATION: (
            "probation",
            "carries in full, and is watched",
            f"[hold] probation_s = {hold.probation_s:g}",
        ),
        LinkState.DEGRADED: _degraded(link),
        LinkState.ADMIN: (
            ("drained", "an operator drained it", "")
            if link.netdev in host.engine.overrides.drained
            else ("administrator", "the interface is administratively down: no failure", "")
        ),
    }
    name, text, parameters = rules[health.state]
    out = {"name": name, "text": text}
    return out | {"parameters": parameters} if parameters else out


def _probed_down(reason: str, parameters: str) -> tuple[str, str, str]:
    if reason.startswith("MTU black hole"):
        return "mtu", "packets of the link's MTU do not arrive, and small ones do", ""
    return "probe-link", "every path to a living peer misses, over two peers or more", parameters


def _unknown(missing: str | None) -> tuple[str, str, str]:
    if missing:
        return "no-interface", f"{missing}: correct [[links]] netdev, or load its driver", ""
    return "never-seen-up", "no carrier was ever seen: not a failure", ""


def _healthy(unwatched: str) -> tuple[str, str, str]:
    if unwatched:
        return "carrier-only", f"carrier is all that is known: {unwatched}", ""
    return "healthy", "carrier, and nothing speaks against it", ""


def _degraded(link: Link) -> tuple[str, str, str]:
    found = [f for f in link.counters if str(f) in link.health.reason]
    if any(f.rule is not LINK_SPEED for f in found):
        return "counters", "error counters above the rates of the rules table: half the weight", ""
    if found:
        return "speed", "slower than it was: the weight is the part of that speed", ""
    return "loss", "probes are lost for long over two peers: half the weight", ""


def _weight_of(host: Host, link: Link) -> int:
    """The weight that follows from the link's state."""
    return weight_of(link.health.state, link.carrier, host.engine.degraded(link))


def _hard(reason: str) -> tuple[str, str, str]:
    if reason.startswith("carrier"):
        return "carrier", "a lost carrier takes a link down at once", ""
    if reason.startswith(PORT_INACTIVE):
        return "port", "a verbs port that is not active takes its link down", ""
    return "counters", "a counter of which any increase is a fault: down at once", ""


def _steering(host: Host, link: Link, weight: int) -> list[str]:
    """Why the page gives it the weight it has, where that does not follow from the state."""
    said = []
    wanted = {rail.netdev: rail.weight for rail in host.engine.plan().rails}[link.netdev]
    if host.publisher.mode_of(link.netdev) is Mode.OBSERVE:
        why = "the stop file is present" if host.publisher.modes.stopped else "mode observe"
        said.append(f"{why}: steered it would weigh {100 * wanted // FULL} %")
    elif wanted > _weight_of(host, link):
        said.append("kept in full: no other link would carry")
    said += _foretold(host, link, wanted)
    if blamed := host.evaluator.refused_links.get(link.netdev):
        said.append(
            f"probes blame it ({blamed}) but may not take it: "
            f"[steer] max_probe_share = {host.config.steer.max_probe_share:g}, or the last rail"
        )
    if not said:
        said.append(f"{100 * weight // FULL} % follows from the state")
    return said


def _foretold(host: Host, link: Link, wanted: int) -> list[str]:
    """What the forecast does to its weight, or would."""
    if (share := host.engine.share(link)) == 1:
        return []
    by_state = _weight_of(host, link)
    if wanted < by_state:
        return [f"likely to fail: {100 * wanted // FULL} % (prediction, [predict] weight)"]
    why = "its state alone decides" if by_state < FULL else "half of the links at most are lowered"
    return [f"likely to fail, which would leave it {100 * share:.0f} %: {why}"]


def nic(host: Host, link: Link, now: int) -> dict[str, Any]:
    """What is read of the NIC, what is not and why."""
    known = host.nics.nics.get(link.netdev)
    if known is None:
        return {"sources": []}
    downs = known.downs.state
    return {
        "read_ago_s": None if known.read_ns is None else _ago(known.read_ns, now),
        "stale": host.nics.why_stale(known, now),
        "sources": [
            {"source": s.source, "device": s.device, "on": s.on, "reason": s.reason}
            for s in sorted(chain(*known.statuses.values()), key=lambda s: (not s.on, s.source))
        ],
        "errors": dict(known.totals),
        "counted": {
            name: {"count": count, "class": COUNTERS[name].cls.value}
            for name, count in sorted(known.counted.items(), key=lambda item: -item[1])
        },
        "flaps_exact": downs.exact if known.witness else None,
        "flaps_inexact": downs.inexact,
        "module": known.module,
        "measured": host.nics.measured(link.netdev),
        "flags": sorted(known.flags),
        "pcie": known.downgraded(),
        "speed": known.speed.text,
        "risk": None if link.forecast is None else link.forecast.risk,
        "forecast": None if link.forecast is None else link.forecast.document(),
    }


def _counters(host: Host, link: Link, now: int, off: frozenset[str]) -> list[dict[str, Any]]:
    """The findings, each with its rule; what was read, if there are none."""
    out = []
    company = any(f.rule.cls is not Class.CONGESTION and f.rule.alone for f in link.counters)
    for finding in link.counters:
        rule = finding.rule
        bad = rule.cls is not Class.CONGESTION and (rule.alone or company or bool(link.worse))
        text = (
            f"{finding} ({rule.why}); rule: {rule.cls.value}, {rule.threshold:g} in "
            f"{rule.window_s:g} s, counted {finding.count}"
        )
        text += "" if bad or rule.cls is Class.CONGESTION else "; adds to other evidence only"
        out.append(_said("counters", text, bad, _ago(finding.since_ns, now), off))
    known = host.nics.nics.get(link.netdev)
    if known is not None and (known.stale(now) or not out):
        why = host.nics.why_stale(known, now)
        text = f"not read: {why}" if why else "no rule holds"
        age = None if known.read_ns is None else _ago(known.read_ns, now)
        out.append(_said("counters", text, False, age, off))
    if (said := link.forecast) is not None:
        measured = host.nics.measured(link.netdev)
        text = str(said) + (f"; now {measured}" if measured else "")
        age = _ago(known.forecast_ns, now) if known is not None else None
        out.append(_said("prediction", text, said.named, age, off))
    return out


def _evidence(host: Host, link: Link, now: int) -> list[dict[str, Any]]:
    """What each detector says now; ``against`` is True where it speaks against the link."""
    off = host.engine.overrides.off
    row = next((r for r in host.prober.feed.links() or () if r.index == link.index), None)
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
    out += _counters(host, link, now, off)
    if unwatched := host.detectors.probing.unwatched(link.netdev, now):
        out.append(_said("probe-link", unwatched, False, None, off) | {"unwatched": True})
    if host.engine.rdma.link(link.netdev) is not None:
        text, bad = rdma.text(host, link, now), rdma.against(host, link)
        out.append(_said(rdma.DETECTOR, text, bad, None, off))
        out += [
            _said(rdma.DETECTOR, said, bad, _ago(heard, now), off)
            for said, bad, heard in rdma.path_texts(host, link)
        ]
    large = link.mtu or host.detectors.probing.mtu_summary(link.index)
    out.append(_said("mtu", large, bool(link.mtu), None, off))
    out.append(_said("loss", link.worse or _path_losses(host, link), bool(link.worse), None, off))
    out += _delay_said(host, link, now, off)
    out.append(_paths_said(host, link, off))
    if why := host.engine.congested.get(link.index):
        out.append(_said("probe-link", f"full queue, no verdict: {why}", False, None, off))
    rows = {r.index: r for r in host.prober.feed.paths() or ()}
    for path in host.engine.paths:
        if path.spec.link != link.index or (probe := rows.get(path.index)) is None:
            continue
        bad = max(probe.rx_missed, probe.tx_missed) >= host.engine.rules.misses
        text = (
            f"{path.spec.peer} rail {path.spec.peer_rail} ({path.spec.address}): "
            f"{path.health.state.name.lower()}, missing in a row rx {probe.rx_missed} "
            f"tx {probe.tx_missed}, lost rx {probe.rx_lost} tx {probe.tx_lost}"
        ) + "".join(f"; {said}" for said in (path.worse, path.mtu) if said)
        bad = bad or bool(path.mtu)
        out.append(_said("probe-path", text, bad, _ago(probe.last_heard_ns, now), off))
    return out


def _path_losses(host: Host, link: Link) -> str:
    """Where the link is not blamed for losses: whether some of its paths are."""
    worse = [p.worse for p in host.engine.paths if p.spec.link == link.index and p.worse]
    if not worse:
        return "none worth telling"
    what = "1 path loses" if len(worse) == 1 else f"{len(worse)} paths lose"
    return f"{what}, and that it is the link is not certain: {worse[0]}"


def _delay_said(host: Host, link: Link, now: int, off: frozenset[str]) -> list[dict[str, Any]]:
    """Base delay and queues, and what job pages say of the rail."""
    condition = host.detectors.delay.condition(link.netdev)
    figures = host.detectors.delay.view.link_figures(link.index)
    (rx50, tx50), (rx99, tx99) = figures.queue_p50_ns, figures.queue_p99_ns
    text = "base delay not known yet"
    if figures.base_rtt_ns is not None and rx50 is not None and tx50 is not None:
        base = f"half of the base round trip {figures.base_rtt_ns / 2e3:.1f} µs"
        if figures.base_tx_ns is not None and figures.base_rx_ns is not None:
            base = (
                f"base tx {figures.base_tx_ns / 1e3:.1f} µs, rx {figures.base_rx_ns / 1e3:.1f} µs "
                f"(± {(figures.bound_ns or 0) / 1e3:.1f} µs)"
            )
        text = (
            f"{base}; queued p50/p99 tx {tx50 / 1e3:.0f}/{(tx99 or 0) / 1e3:.0f} µs, "
            f"rx {rx50 / 1e3:.0f}/{(rx99 or 0) / 1e3:.0f} µs in {figures.window_s:.0f} s"
        )
    told = condition.now in (Condition.CONGESTED, Condition.SLOW)
    if told:
        text = f"{condition.now.value}: {condition.why}; {text}"
    return [_said(DELAY, text, told, _ago(condition.since_ns, now) if told else None, off)]


def _paths_said(host: Host, link: Link, off: frozenset[str]) -> dict[str, Any]:
    views = host.prober.tables.views()
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
    if link.netdev in host.engine.overrides.drained:
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
        return "UP when the loss, or the errors, are gone"
    if state is LinkState.ADMIN:
        return "UNKNOWN, then UP, once the interface is up again"
    return ""


def _override(host: Host, kind: Kind, target: str, now: int) -> dict[str, Any] | None:
    override = host.operator.manager.active.get(kind, target)
    return None if override is None else host.operator.manager.describe(override, now)


def _ago(then: int | None, now: int) -> float | None:
    return round((now - then) / SEC, 3) if then else None


def _until(then: int, now: int) -> float:
    return round(max(0, then - now) / SEC, 1)

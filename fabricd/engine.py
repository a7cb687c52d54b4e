"""The daemon's decisions: links and paths of one host, from facts to transitions and a plan. Pure.

The shell (`fabricd.daemon`) says what carrier, administrator and prober say; `evaluate` returns the
transitions; `plan` says what the steer page should hold. ``now`` is CLOCK_MONOTONIC ns throughout.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fabricd.config.loader import Config
from fabricd.detect.mesh import PathSpec
from fabricd.detect.progress import ByteProgress
from fabricd.detect.receive_path import ReceivePath
from fabricd.detect.rules import LINK_SPEED, Class, Finding
from fabricd.detect.silence import PathView, Rules
from fabricd.detect.verdict import FailureDetector, Verdict, added, healthy, live_peers
from fabricd.links.health import Facts, Health
from fabricd.links.machine import CARRYING
from fabricd.operate.effective import EffectiveOverrides
from fabricd.predict import forecast
from fabricd.predict.forecast import Forecast
from fabricd.state import saved
from fabricd.state.evaluation import Change, Evaluation
from fabricd.state.model import BYE, OUT, Link, Path
from fabricd.state.rdma_rails import RdmaRails
from fabricd.state.rules import damping_rules, hold_rules
from fabricd.steer import inputs
from fabricd.steer.exceptions import ExceptionLimiter
from fabricd.steer.policy import Plan
from telemetry.events import LinkState

PROBER_GRACE_NS = 10 * 10**9
"""After that long without a prober a link returns on its carrier alone."""
FRESH_NS = 100_000_000
"""A prober that runs writes its table every 20 ms."""
MOST_LEFT = 1000
"""Paths of earlier configurations that are remembered, the newest."""

HALF = 0.5
"""Of its weight, of what works and is worse than it should be."""
PORT_INACTIVE = "verbs port not active"

_WORKING = CARRYING - {LinkState.UNKNOWN}


class Engine:
    """All links and paths of one host."""

    def __init__(
        self,
        config: Config,
        paths: Sequence[PathSpec],
        *,
        receive_path: ReceivePath | None = None,
        progress: ByteProgress | None = None,
    ) -> None:
        """Take a configuration.

        Args:
            config: with the links.
            paths: to probe.
            receive_path: what verdicts of silence wait for; None: for nothing.
            progress: likewise.
        """
        self.links: list[Link] = []
        self.paths: list[Path] = []
        self._left: dict[str, Path] = {}
        """Paths that the configuration or the links' addresses had once and do not have now."""
        self.receive_path = receive_path or ReceivePath()
        self.progress = progress or ByteProgress()
        self._failure_detector = FailureDetector(Rules(), self.receive_path, self.progress)
        self.max_probe_share = 0.5
        self.predict = config.predict
        self.overrides = EffectiveOverrides()
        self.rdma, self.exceptions = RdmaRails(), ExceptionLimiter()
        self.silent_hosts: frozenset[str] = frozenset()
        self.congested: Mapping[int, str] = {}
        """Link index → what probes would say against it if its payload did not move."""
        self._blamed: frozenset[int] = frozenset()
        """Links that probes blame now, also those whose traffic they may not take."""
        self._prober_lost_ns: int | None = None
        self._judged = Verdict()
        """Of the newest table that was fresh when it was looked at."""
        self.configure(config, paths)

    def configure(
        self, config: Config, paths: Sequence[PathSpec], rdma: Sequence[int] = ()
    ) -> None:
        """Take a configuration; links and paths that stay keep state, penalty and timers.

        Args:
            config: with the links.
            paths: to probe.
            rdma: indices of the links where RDMA is probed too, in the prober's order.
        """
        damping, hold = damping_rules(config), hold_rules(config)
        interval_ns = config.probe.link_interval_ms * 1_000_000
        self._failure_detector.rules = Rules(config.probe.misses, interval_ns)
        self._failure_detector.reset()
        self.progress.configure([table.netdev for table in config.links])
        self._judged = Verdict()
        self._blamed = frozenset()
        self.max_probe_share = config.steer.max_probe_share
        self.exceptions.configure(damping.window_ns, damping.max_transitions)
        self.predict = config.predict
        old_links = {link.netdev: link for link in self.links}
        old_paths = {path.key: path for path in self.paths}
        self._left |= old_paths
        self.links = []
        for index, table in enumerate(config.links):
            link = old_links.get(table.netdev) or Link(
                index, table.netdev, table.rail, Health(damping, hold)
            )
            link.index, link.rail = index, table.rail
            self.links.append(link)
        self.paths = []
        for index, spec in enumerate(paths):
            link = self.links[spec.link]
            path = Path(index, spec, link.netdev, Health(damping, hold))
            if (known := old_paths.get(path.key)) is not None:
                path.health, path.heard_ever = known.health, known.heard_ever
                path.worse, path.gone, path.returned = known.worse, known.gone, known.returned
                path.mtu = known.mtu
            elif link.netdev in old_links and (known := self._left.get(path.key)) is not None:
                path.returned = True
                if link.out or known.health.state in OUT:
                    # An address that goes and comes back is no evidence that the fault is gone.
                    path.health, path.heard_ever = known.health, known.heard_ever
            self.paths.append(path)
        now_keys, netdevs = {p.key for p in self.paths}, {x.netdev for x in self.links}
        left = [(k, p) for k, p in self._left.items() if k not in now_keys and p.netdev in netdevs]
        self._left = dict(left[-MOST_LEFT:])
        for health in [x.health for x in self.links] + [x.health for x in self.paths]:
            health.hold, health.damping.rules = hold, damping
        self.rdma.configure(self.links, paths, rdma, (damping, hold))

    @property
    def rules(self) -> Rules:
        """Parameters of the verdict."""
        return self._failure_detector.rules

    # -- evidence -----------------------------------------------------------------------------

    def report_carrier(self, link: Link, *, carrier: bool, downs: int) -> None:
        """A link has carrier or has none, and lost it ``downs`` times since the last report."""
        link.carrier = carrier
        link.pending_downs += downs

    def report_admin(self, link: Link, *, up: bool) -> None:
        """An administrator set a link up or down."""
        link.admin_up = up

    def report_port(self, link: Link, active: bool | None) -> None:
        """State of the verbs port behind a link; None: there is none, or it is not known."""
        link.port_active = active

    def report_loss(self, links: Mapping[int, str], paths: Mapping[int, str]) -> None:
        """Links and paths (index → why) that lose too many probes; all others do not."""
        for link in self.links:
            link.worse = links.get(link.index, "")
        for path in self.paths:
            path.worse = paths.get(path.index, "")

    def report_peers(
        self, links: Mapping[int, str], paths: Mapping[int, str], dark: Container[int]
    ) -> None:
        """What peers say: probed and never heard (index → why); no carrier at a path's end."""
        for link in self.links:
            link.unseen = links.get(link.index, "")
        for path in self.paths:
            path.unseen, path.peer_dark = paths.get(path.index, ""), path.index in dark

    def report_mtu(self, links: Mapping[str, str], paths: Mapping[int, str]) -> bool:
        """MTU black holes by netdev and by path; returns whether any began or ended."""
        items: list[Link | Path] = [*self.links, *self.paths]
        before = [item.mtu for item in items]
        for link in self.links:
            link.mtu = links.get(link.netdev, "")
        for path in self.paths:
            path.mtu = paths.get(path.index, "")
        return before != [item.mtu for item in items]

    def report_counters(
        self, link: Link, findings: Sequence[Finding], speed_ratio: float | None
    ) -> None:
        """What the rules say of the counters behind a link, and its speed by what it was."""
        link.counters, link.speed_ratio = findings, speed_ratio

    def report_forecast(self, link: Link, said: Forecast | None, now: int) -> None:
        """The failure forecast of a link; None: there is none any more."""
        if said is not None and said.named and not (link.forecast and link.forecast.named):
            link.named_ns = now
        link.forecast = said

    def forgive(self, netdev: str) -> None:
        """Drop a link's damping penalty: somebody has worked on it and vouches for it."""
        for link in self.links:
            if link.netdev == netdev:
                link.health.damping.forgive()

    def override(self, overrides: EffectiveOverrides) -> None:
        """Operators want this from now on, in place of all that they wanted before."""
        self.overrides = overrides

    # -- decisions ----------------------------------------------------------------------------

    def evaluate(
        self,
        views: Sequence[PathView] | None,
        now: int,
        *,
        rdma: Sequence[PathView] = (),
        as_of: int | None = None,
    ) -> Evaluation:
        """Judge everything and do the transitions that follow.

        Args:
            views: all UDP paths as the prober sees them; None: there is no prober now.
            rdma: likewise the RDMA paths; empty: there is no prober that probes them.
            now: CLOCK_MONOTONIC ns.
            as_of: when the prober wrote the views; default: now.
        """
        views = self._take_views(views, now)
        seen = now if as_of is None else as_of
        verdict, again = Verdict(), None
        said = verdict
        if views is not None:
            # The prober is not running now: what it wrote before it stopped waits for it.
            if now - seen <= FRESH_NS:
                # Each transport is a witness of the other: the same prober sends both.
                self._judged = self._failure_detector.judge([*views, *rdma], seen)
                again = self._judged.again_ns
            verdict = said = self._expected(self._judged)
        else:
            self._judged = Verdict()  # another prober's table is to come
        verdict = self.overrides.verdict(verdict)
        if views is not None:
            verdict = self._black_holes(verdict)
        everyone = None if views is None else [*views, *rdma]
        out = Evaluation(silent_hosts=verdict.silent_hosts)
        self.silent_hosts = verdict.silent_hosts
        self.congested = verdict.congested
        self._blamed = frozenset(verdict.link_faults)
        for link in self.links:
            facts = self._link_facts(link, verdict, everyone, out, now)
            link.pending_downs = 0
            for transition in link.health.update(facts, now):
                out.changes.append(Change(link.netdev, link.rail, "", "", transition))
            if link.health.damping.operator_due(now):
                out.operator.append(link.netdev)
        for path in self.paths:
            well = views is not None and views[path.index].clean
            well = well and not path.worse and not path.mtu
            if well and path.health.state is LinkState.UP:
                continue  # the usual case: nothing to do
            facts = self._path_facts(path, verdict, views)
            for transition in path.health.update(facts, now):
                out.changes.append(
                    Change(
                        path.netdev, self.links[path.spec.link].rail, path.spec.peer,
                        path.spec.address, transition,
                    )
                )  # fmt: skip
        out.changes += self.rdma.evaluate(
            said, views or (), rdma, self.overrides, now, self.max_probe_share
        )
        share = self.max_probe_share
        calm = inputs.limit(self.exceptions, self.links, self.paths, self.rdma, share, now)
        due = [again, calm, self.rdma.due_at()]
        due += [x.health.due_at() for x in self.links] + [p.health.due_at() for p in self.paths]
        out.due_at = min((t for t in due if t is not None), default=None)
        return out

    def plan(self) -> Plan:
        """What steering would do now."""
        return inputs.plan(
            self.links, self.paths, self.rdma,
            drained=self.overrides.drained, share=self.share, degraded=self.degraded,
            max_probe_share=self.max_probe_share, refused=self.exceptions.refused,
        )  # fmt: skip

    def share(self, link: Link) -> float:
        """What the forecast leaves a link that works."""
        said, rules = link.forecast, self.predict
        if said is None or not said.named or not rules.steer:
            return 1.0
        if not self.overrides.foretells(link.netdev):
            return 1.0
        return forecast.weight(max(said.risk, rules.threshold), rules.threshold, rules.weight)

    def degraded(self, link: Link) -> float:
        """What a link carries in state DEGRADED: half, or its part of the speed that it had."""
        if link.speed_ratio is None or link.speed_ratio >= 1.0:
            return HALF
        others = any(
            f.rule.cls is Class.SOFT and f.rule.alone and f.rule is not LINK_SPEED
            for f in link.counters
        )
        if others or self.overrides.worse(link.netdev, link.worse):
            return min(HALF, link.speed_ratio)
        return link.speed_ratio

    def blamed(self, link: int) -> bool:
        """Whether the last verdict blames a link, be it out for that or kept."""
        return link in self._blamed

    def in_outage(self, path: int) -> bool:
        """Whether a path, its link or its peer is out, or at fault and kept: that explains losses.

        SUSPECT explains nothing: a link that loses much is suspected again and again.
        """
        own, spec = self.paths[path].health.state, self.paths[path].spec
        link = self.links[spec.link]
        out = own not in _WORKING or link.health.state not in _WORKING
        return out or self.blamed(link.index) or spec.peer in self.silent_hosts

    # -- over restarts ------------------------------------------------------------------------

    def save(self, now: int) -> dict[str, Any]:
        """A JSON document of all states and penalties."""
        return saved.document(self.links, self.paths, now) | {"rdma": self.rdma.save(now)}

    def restore(self, document: dict[str, Any], now: int, elapsed_ns: int) -> list[str]:
        """Take over what `save` gave ``elapsed_ns`` ago; returns what was not usable."""
        refused = saved.restore(self.links, self.paths, document, now, elapsed_ns)
        # Daemons of before RDMA probes kept none.
        return refused + self.rdma.restore(document.get("rdma", {}), now, elapsed_ns)

    def restore_history(self, document: dict[str, Any], now: int, elapsed_ns: int) -> list[str]:
        """Take over what `save` gave before a reboot: the links' damping and what was out.

        Returns what was not usable. Paths begin anew: who is a peer may have changed.
        """
        return saved.restore_history(self.links, document, now, elapsed_ns)

    def adopt(self, netdev: str, remote: str, state: LinkState, now: int) -> None:
        """Believe an earlier daemon's steer page that a link or path is out."""
        saved.adopt(self.links, self.paths, (netdev, remote, state), now)

    # -- inside -------------------------------------------------------------------------------

    def _take_views(self, views: Sequence[PathView] | None, now: int) -> Sequence[PathView] | None:
        if views is None:
            if self._prober_lost_ns is None:
                self._prober_lost_ns = now
            return None
        self._prober_lost_ns = None
        for view in views:
            path = self.paths[view.index]
            if view.heard:
                path.heard_ever, path.returned = True, False
            path.gone = view.gone and not path.returned
        return views

    def _expected(self, verdict: Verdict) -> Verdict:
        """And what was never heard but should be: peers say so (`fabricd.detect.unseen`)."""
        links = {x.index: x.unseen for x in self.links if x.unseen}
        return added(verdict, links, {p.index: p.unseen for p in self.paths if p.unseen})

    def _black_holes(self, verdict: Verdict) -> Verdict:
        """And what drops large packets only (`fabricd.detect.mtu`)."""
        links = {x.index: x.mtu for x in self.links if self.overrides.mtu(x.netdev, x.mtu)}
        paths = {p.index: p.mtu for p in self.paths if self.overrides.mtu(p.netdev, p.mtu)}
        return added(verdict, links, paths)

    def _link_facts(
        self,
        link: Link,
        verdict: Verdict,
        views: Sequence[PathView] | None,
        out: Evaluation,
        now: int,
    ) -> Facts:
        facts = Facts(
            admin_up=link.admin_up,
            carrier=self.overrides.carrier(link.carrier),
            downs=link.pending_downs,
            suspect=verdict.link_suspects.get(link.index, ""),
            hard_fault=_said(link.counters, Class.HARD),
        )
        facts = self.overrides.facts(link.netdev, facts)
        if link.port_active is False and self.overrides.uses_ports and facts.carrier is not False:
            # One that was never active is no failure; else it is one of its own.
            never = link.health.state is LinkState.UNKNOWN
            facts = (
                replace(facts, carrier=False) if never else replace(facts, hard_fault=PORT_INACTIVE)
            )
        if link.out or facts.downs or facts.hard_fault or verdict.link_faults:
            # Asked only on the way back (or when this very update begins and ends an outage).
            facts = replace(facts, clean=self._clean(link, views, now))
        elif link.health.state in (LinkState.UNKNOWN, LinkState.ADMIN) and views is not None:
            facts = replace(facts, clean=self._clean(link, views, now))
        fault = verdict.link_faults.get(link.index, "")
        facts, fault = self._kept_out(link, facts, fault, out)
        loses = self.overrides.worse(link.netdev, link.worse)
        own = any(f.rule.cls is Class.SOFT and f.rule.alone for f in link.counters)
        # What counts what happened anywhere on the way only adds to others.
        said = _said(link.counters, Class.SOFT) if own or loses else ""
        errors = self.overrides.soft(link.netdev, said)
        worse = errors or loses
        if not fault and not worse:
            return facts  # the usual case
        without_probes = (
            bool(facts.hard_fault or (own and errors))
            or facts.carrier is False
            or facts.downs > 0
            or not facts.admin_up
        )
        if (fault or worse) and not without_probes and not link.out:
            degraded_only = not fault
            if not self._may_take(link):
                out.refused[link.netdev] = fault or worse
                return facts if facts.planned else replace(facts, suspect=fault or facts.suspect)
            if degraded_only:
                return replace(facts, worse=worse)
        return replace(facts, fault=fault, worse=worse)

    def _kept_out(self, link: Link, facts: Facts, fault: str, out: Evaluation) -> tuple[Facts, str]:
        """What probes may say against a link that hard evidence took out: all, or nothing.

        Once that evidence is over, probes alone keep it out, and then their share is the limit.
        """
        link.held = False
        if not link.out or facts.carrier is False or facts.hard_fault:
            return facts, fault
        if not fault and facts.clean:
            return facts, fault
        if link.health.fault_was_hard and not self._may_take(link):
            out.refused[link.netdev] = fault or "probes are not heard again"
            suspect = facts.suspect if facts.planned else fault or facts.suspect
            return replace(facts, clean=True, suspect=suspect), ""
        link.held = True
        return facts, fault

    def _may_take(self, link: Link) -> bool:
        """Whether probes alone may take this link's traffic too."""
        taken = sum(other is not link and other.by_probes for other in self.links)
        left = [
            x for x in self.links
            if x is not link and x.carrier is not False and x.health.state in CARRYING
        ]  # fmt: skip
        return taken + 1 <= self.max_probe_share * len(self.links) and bool(left)

    def _clean(self, link: Link, views: Sequence[PathView] | None, now: int) -> bool:
        if not self.overrides.uses_links:
            return True  # Who does not believe that it is dead does not wait for it to live.
        if views is None:
            lost = self._prober_lost_ns
            gone = lost is not None and now - lost >= PROBER_GRACE_NS
            return gone or link.health.fault_was_hard
        known = [p.index for p in self.paths if p.heard_ever and p.spec.link == link.index]
        if not known and any(p.heard_ever and p.netdev == link.netdev for p in self._left.values()):
            # Its address went: as without a prober, for it may be back in a moment.
            if link.pathless_ns is None:
                link.pathless_ns = now
            return link.health.fault_was_hard or now - link.pathless_ns >= PROBER_GRACE_NS
        link.pathless_ns = None
        own = [
            v._replace(gone=self.paths[v.index].gone) if v.gone else v
            for v in views
            if v.link == link.index
        ]
        return healthy(own, known, live_peers(views, link.index))

    def _path_facts(
        self,
        path: Path,
        verdict: Verdict,
        views: Sequence[PathView] | None,
    ) -> Facts:
        hole = self.overrides.mtu(path.netdev, path.mtu)
        if not self.overrides.uses_paths and path.health.state in OUT and not hole:
            return Facts(worse=self.overrides.worse(path.netdev, path.worse))  # No more exception.
        if views is None:
            return Facts(carrier=None, clean=False)
        view = views[path.index]
        if path.gone and path.health.state not in (LinkState.UP, LinkState.UNKNOWN):
            # Neither a failure any more nor a recovery: heard again it begins at UNKNOWN.
            return Facts(admin_up=False, drained=BYE)
        link = self.links[path.spec.link]
        # While the link itself is out, its paths keep the state they had.
        mute = link.index in self._blamed or link.health.state not in CARRYING
        fault = "" if mute else verdict.path_faults.get(path.index, "")
        worse = "" if mute else self.overrides.worse(path.netdev, path.worse)
        return Facts(
            carrier=view.heard or None,
            fault=fault,
            clean=view.sound,
            worse=worse,
            seen="heard",
            expected=bool(path.unseen),
        )


def _said(findings: Sequence[Finding], cls: Class) -> str:
    """The findings of one class in words; empty: none."""
    return ", ".join(str(finding) for finding in findings if finding.rule.cls is cls)

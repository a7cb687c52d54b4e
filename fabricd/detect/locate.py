"""Where is the fault? The likeliest element, from which flows of the mesh fail. Pure.

A *flow* is one direction between two ports (host, rail). Each element (a port in one direction or
both, a host, a leaf, the spine layer between two leaves, one path) fails a known set of flows. An
observation says with a log-likelihood ratio (nats, > 0: bad) whether its flow fails; an element's
score is

    ln P(element fails)  +  Σ over its flows  ln(a · e**ratio + 1 − a)

with a the chance that the fault shows on the flow: nearly 1, but for a spine, of which a flow uses
one of several; there a is the share that makes the evidence likeliest. Flows that an element does
not fail count as they are (their ratio is relative to "this flow is well", so they add 0). The
alternatives compete: nothing fails, and *unknown*, where every bad flow has a cause of its own. The
posterior of the best is the confidence; below `Rules.confidence` the answer is unknown, and the
candidates are named. What an answer leaves unexplained is asked again, so two faults get two
answers, and five ports of one leaf that fail together are one leaf and not five cables. Two cables
of one leaf are no leaf, though one cause would explain more: an element that joins several ports
competes with the ports that would explain the same together, each with its own base rate.

Base rates per element and month: links 0.057 %, ToR switches 0.051 % (Alibaba HPN, SIGCOMM 2024);
hosts are put at 1 % (Llama 3: 419 stops of 2,048 hosts in 54 days, of which 8.4 % switch or cable,
but few take the whole host's network). Ratios decide; base rates break ties.

The observations of one host suffice for own and peer's ports and hosts; a leaf shows by the
cross-rail paths, which reach a rail's ports without the own link. Many hosts' may be merged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fabricd.detect.causes import Cause, Kind, Port, Rules, Way
from fabricd.detect.unexplained import Unexplained

__all__ = [
    "ANY_SPINE", "CLEAN", "SILENT", "Blame", "Flow", "Kind", "Port", "Rules", "Topology", "Way",
    "locate", "port_name",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction between two ports, and what was seen of it."""

    source: Port
    target: Port
    ratio: float
    """ln P(seen | it fails) − ln P(seen | it is well); 0 says nothing."""
    at: tuple[float, ...] = ()
    """The same if it fails by losing at each of some rates, the same ones for all flows; empty:
    a failed flow carries nothing, and there is one rate."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Which leaf a port is on; a port not named is on the leaf of its rail (rail-optimized).

    From LLDP or a static map; names are free.
    """

    leaf_of: Mapping[Port, str] = field(default_factory=dict)

    def leaf(self, port: Port) -> str:
        """The leaf's name."""
        return self.leaf_of.get(port, f"rail{port[1]}")


@dataclass(frozen=True, slots=True)
class Blame:
    """One answer."""

    kind: Kind
    element: str
    """``h1/3`` for a port (host, rail), a host's or leaf's name, ``A-B``; empty: unknown."""
    way: Way = Way.BOTH
    confidence: float = 1.0
    flows: int = 0
    """Bad flows that it explains."""
    pairs: int = 0
    """Pairs of ports that these flows are between: one pair alone does not say at which end."""
    candidates: tuple[tuple[Kind, str, float], ...] = ()
    """The likeliest (kind, element, posterior), best first."""

    def __str__(self) -> str:
        if self.kind is Kind.UNKNOWN:
            names = " or ".join(f"{kind} {element}" for kind, element, _ in self.candidates)
            return f"unknown ({names})" if names else "unknown"
        way = "" if self.way is Way.BOTH else f" {self.way}"
        what = f" ({_MEANS[self.kind]})" if self.kind in _MEANS else ""
        return f"{self.kind} {self.element}{way}{what}, {100 * self.confidence:.0f} %"


_MEANS = {
    Kind.LINK: "NIC, cable or port of the leaf",
    Kind.HOST: "dead, or too busy",
    Kind.PATH: "this pair of ports alone",
}
"""For an operator; leaf and spine say it themselves."""


SILENT, CLEAN = 6.0, -6.0
ANY_SPINE = "between leaves"
"""A spine that flows between many leaves share; which one, only their hash would tell."""


def port_name(port: Port) -> str:
    """``host/rail``."""
    return f"{port[0]}/{port[1]}"


def locate(
    flows: Sequence[Flow],
    *,
    topology: Topology | None = None,
    dark: Iterable[Port] = (),
    lit: Iterable[Port] = (),
    certain: bool = False,
    rules: Rules | None = None,
) -> list[Blame]:
    """The faults that explain what is seen, the surest first; empty when nothing is wrong.

    Args:
        flows: observations; several of one flow add up.
        topology: which leaf each port is on.
        dark: ports known to be without carrier.
        lit: ports known to have carrier: a dead leaf hardly leaves it to them.
        certain: what is bad does fail, by a test that was made before: only the place is asked.
        rules: parameters.
    """
    rules = rules or Rules()
    keys, columns = _columns(flows, rules)
    index = _Index(keys, topology or Topology())
    left = Unexplained(columns, set(dark), set(lit), rules)
    blames: list[Blame] = []
    for _ in range(rules.answers):
        bad = left.bad()
        if not bad and not left.dark:
            break
        blame, cause = _best(_causes(index, bad, left.dark, rules), left, keys, certain=certain)
        if blame is None:
            break
        if (blame.kind, blame.element) not in {(b.kind, b.element) for b in blames}:
            blames.append(blame)
        if cause is None:
            break
        explained = left.explained(cause)
        left = left.without(cause, explained)
        if cause.kind is Kind.HOST and cause.way is Way.BOTH:
            # Its last words may have been that carriers go, one after the other.
            left.dark = {port for port in left.dark if port[0] != cause.element}
        # Who is not heard cannot answer for its address either: the way back fails with it.
        back = [keys[i][::-1] for i in explained if isinstance(i, int)]
        left.excuse(index.at[key] for key in back if key in index.at)
    return blames


def _columns(
    flows: Sequence[Flow], rules: Rules
) -> tuple[list[tuple[Port, Port]], list[list[float]]]:
    """The ports of each flow, and its ratio at each rate that some bad flow may lose at."""
    width = max((len(flow.at) for flow in flows), default=0) or 1
    merged: dict[tuple[Port, Port], list[float]] = {}
    for flow in flows:
        row = merged.setdefault((flow.source, flow.target), [0.0] * width)
        for column, ratio in enumerate(flow.at or (flow.ratio,) * width):
            row[column] += ratio
    most = rules.most
    table = [[max(-most, min(most, ratio)) for ratio in row] for row in merged.values()]
    columns = [list(column) for column in zip(*table, strict=True)]
    used = [column for column in columns if max(column) >= rules.bad]
    return list(merged), used or columns[:1] or [[]]


class _Index:
    """Which flows use what."""

    def __init__(self, keys: Sequence[tuple[Port, Port]], topology: Topology) -> None:
        self.keys = keys
        self.topology = topology
        self.sends: dict[Port | str, list[int]] = {}
        self.hears: dict[Port | str, list[int]] = {}
        self.leaf: dict[str, list[int]] = {}
        self.ports: dict[str, set[Port]] = {}
        self.between: list[str] = []
        self.spine: dict[str, list[int]] = {}
        self.at = {key: i for i, key in enumerate(keys)}
        for i, (source, target) in enumerate(keys):
            for table, port in ((self.sends, source), (self.hears, target)):
                table.setdefault(port, []).append(i)
                table.setdefault(port[0], []).append(i)
            one, other = topology.leaf(source), topology.leaf(target)
            for leaf, port in ((one, source), (other, target)):
                self.ports.setdefault(leaf, set()).add(port)
            for leaf in {one, other}:
                self.leaf.setdefault(leaf, []).append(i)
            name = "" if one == other else "-".join(sorted((one, other)))
            self.between.append(name)
            if name:
                self.spine.setdefault(name, []).append(i)


def _causes(index: _Index, bad: Sequence[int], dark: set[Port], rules: Rules) -> list[Cause]:
    """Every element that could explain at least one bad flow or dark port."""
    ports = {port for i in bad for port in index.keys[i]} | dark
    none: list[int] = []
    out: list[Cause] = []
    for port in sorted(ports):
        sends, hears = index.sends.get(port, none), index.hears.get(port, none)
        own = frozenset({port})
        out += _ways(Kind.LINK, port_name(port), rules.link, sends, hears, own)
    for host in sorted({port[0] for port in ports}):
        sends, hears = index.sends.get(host, none), index.hears.get(host, none)
        out += _ways(Kind.HOST, host, rules.host, sends, hears, frozenset())
    for leaf in sorted({index.topology.leaf(port) for port in ports}):
        over = tuple(index.leaf.get(leaf, none))
        there = {port for port in dark if index.topology.leaf(port) == leaf}
        own = frozenset(there | index.ports.get(leaf, set()))
        out.append(Cause(Kind.LEAF, leaf, Way.BOTH, rules.leaf, over, ports=own))
    spines = sorted({index.between[i] for i in bad} - {""})
    for spine in spines:
        over = tuple(index.spine[spine])
        out.append(Cause(Kind.SPINE, spine, Way.BOTH, rules.spine, over, partial=True))
    if spines and len(index.spine) > 1:
        # Between two leaves alone it would be the same flows again.
        over = tuple(i for i, name in enumerate(index.between) if name)
        out.append(Cause(Kind.SPINE, ANY_SPINE, Way.BOTH, rules.spine, over, partial=True))
    for low, high in sorted({(min(index.keys[i]), max(index.keys[i])) for i in bad}):
        to, back = ([index.at[k]] if k in index.at else none for k in ((low, high), (high, low)))
        name = f"{port_name(low)}-{port_name(high)}"
        out += _ways(Kind.PATH, name, rules.path, to, back, frozenset())
    return out


def _ways(
    kind: Kind,
    name: str,
    prior: float,
    sends: Sequence[int],
    hears: Sequence[int],
    ports: frozenset[Port],
) -> list[Cause]:
    """One direction, the other, both: the last as likely as the two others together."""
    return [
        Cause(kind, name, Way.OUT, prior / 4, tuple(sends)),
        Cause(kind, name, Way.IN, prior / 4, tuple(hears)),
        Cause(kind, name, Way.BOTH, prior / 2, tuple(sorted({*sends, *hears})), ports=ports),
    ]


def _best(
    causes: Sequence[Cause],
    seen: Unexplained,
    keys: Sequence[tuple[Port, Port]],
    *,
    certain: bool,
) -> tuple[Blame | None, Cause | None]:
    """The best answer to what is still unexplained; None: nothing is wrong enough."""
    rules = seen.rules
    scores = [seen.of(cause) for cause in causes]
    order = sorted(range(len(causes)), key=lambda i: -scores[i])
    together: tuple[float, Cause] | None = None
    while order and causes[order[0]].kind in _JOINS:
        joint = causes[order[0]]
        together = _several(joint, scores[order[0]], causes, seen)
        if together is None or together[0] < scores[order[0]]:
            break
        order = [
            i for i in order if (causes[i].kind, causes[i].element) != (joint.kind, joint.element)
        ]
        together = None
    if not order:
        return None, None
    best = causes[order[0]]
    explained = seen.explained(best)
    # An alternative explains so much of the same that the best is not needed beside it. The rest,
    # also the other end of a flow between two bad ports, is another fault.
    rivals = []
    for i in order:
        same = explained & seen.explained(causes[i])
        if same and scores[order[0]] - sum(seen.gain(one) for one in same) < _NEEDED:
            rivals.append(i)
    flows = [i for i in explained if isinstance(i, int)]
    alone = sum(max(0.0, seen.most[i] - rules.own_cause) for i in flows)
    weights: dict[tuple[Kind, str], float] = {}
    top = max(scores[order[0]], math.log(rules.unknown) + alone)
    for i in rivals:
        key = (causes[i].kind, causes[i].element)
        weights[key] = weights.get(key, 0.0) + math.exp(scores[i] - top)
    if together is not None:
        first = together[1]
        weights[first.kind, first.element] = weights.get(
            (first.kind, first.element), 0.0
        ) + math.exp(together[0] - top)
    weights[Kind.UNKNOWN, ""] = math.exp(math.log(rules.unknown) + alone - top)
    if not certain:
        weights[Kind.NOTHING, ""] = math.exp(min(-top, 700.0))
    total = sum(weights.values())
    ranked = sorted(weights, key=lambda key: -weights[key])
    kind, element = ranked[0]
    if kind is Kind.NOTHING:
        return None, None
    share = weights[ranked[0]] / total
    named = tuple((k, name, weights[k, name] / total) for k, name in ranked if name)[:3]
    pairs = len({frozenset(keys[i]) for i in flows})
    if kind is Kind.SPINE and share < rules.confidence and (kind, ANY_SPINE) in weights:
        # Between which leaves is a matter of few flows; that it is a spine is the sum of all.
        spine = sum(weight for key, weight in weights.items() if key[0] is Kind.SPINE) / total
        if spine >= rules.confidence:
            element, share = ANY_SPINE, spine
    if kind is Kind.UNKNOWN or share < rules.confidence:
        return Blame(Kind.UNKNOWN, "", Way.BOTH, share, len(flows), pairs, named), None
    best = next(c for i in order if (c := causes[i]).kind is kind and c.element == element)
    return Blame(kind, element, best.way, share, len(flows), pairs, named), best


_JOINS = frozenset({Kind.HOST, Kind.LEAF, Kind.SPINE})
"""Elements that several ports share."""


_NEEDED = 3.0
"""Nats that a cause has to explain by itself, to be one whatever else is."""
_HOPELESS = 10.0
"""Nats by which several ports explain less than what they share: nobody needs to know by how much
less, and a leaf has many."""


def _several(
    joint: Cause, joint_score: float, causes: Sequence[Cause], seen: Unexplained
) -> tuple[float, Cause] | None:
    """Score of several ports that explain together what ``joint`` does, and the first of them.

    None: they do not, or by far not as well.
    """
    # What these ports would explain beside is no merit here: ``joint`` does not either.
    left, score = seen.within(joint), 0.0
    open_ = left.explained(joint)
    links = [cause for cause in causes if cause.kind is Kind.LINK]
    first: Cause | None = None
    while open_:
        most = sum(left.gain(one) for one in open_)
        if score + most < joint_score - _HOPELESS:
            return None
        best = max(
            (cause for cause in links if open_ & left.explained(cause)), key=left.of, default=None
        )
        if best is None:
            return None
        score += left.of(best)
        first = first or best
        links.remove(best)
        explained = left.explained(best)
        left = left.without(best, explained)
        open_ -= explained
    return None if first is None else (score, first)

"""What each fault cost, from the recording alone. Pure.

Definitions, so that nobody has to trust the figures blindly:

* **Throughput** is payload accepted (``rx``) by all ranks together, in bins of `BIN_S`. **Full
  speed** is the best median of the stretches that no fault disturbs (`lab.demo.speed`).
* **Share**: a ring is as fast as its slowest host, so with ``n`` rails per host and ``d`` of them
  lost on the host that lost most, what the surviving paths can carry is ``(n - d) / n`` of full
  speed. A rail counts as lost from its fault's start until it carries again.
* **Dip**: the time, from the fault's start until the job is back (or the next fault, or the end),
  that bins lie below `DIP_LEVEL` of what the surviving paths can carry.
* **Carried**: median throughput between `SETTLE_S` after the fault's start and its end, as a part
  of what the surviving paths can carry.
* **Rail back**: the time from the fault's end until each of its rails carries at least
  `REJOIN_SHARE` of its fair share (1/n) of what its host sends *and* of what it receives, for
  `HOLD_S` (median). Other load on the machine moves throughput but not shares.
* **Back**: the time from the fault's end until its rails carry again and throughput stays at or
  above `BACK_LEVEL` of full speed for `HOLD_S` (median, so one noisy bin neither makes nor
  breaks it).
* **After**: median throughput from the moment at which the rails have to be back to the next fault,
  as a part of full speed.
* **Detected**: from the fault's start to the first word of it, by the daemon of that host (carrier
  loss or state DOWN on its timeline) or by a plugin (path given up); with several rails the last.
* **Told**: from the fault's start until the timeline of each host has its link as DOWN.
* **Steered**: from the fault's start until every communicator that gave up a path because of it
  carried payload on a survivor (FIRST_BYTE in the stats pages); without such events, until the
  daemon took the link's weight away. A path given up more than `GIVEN_UP_WITHIN_S` after the start
  was idle: had payload been stuck on it, the job would have stood still, and the dip would show it.
* **Crossing**: when two neighbours lost different rails, what the second accepted on the rail that
  the first has lost. It cannot have left by that rail, so it came from another one, over the
  spines.
* **Retransmitted**: payload sent again by all processes from the fault's start to the next one's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.demo.record import FaultSpan, Floats, Rail, Recording
from lab.demo.speed import BIN_S, SECOND, Speed, Throughput, gaps, speed, throughput, windows
from telemetry.events import Event, EventKind, LinkState
from telemetry.statspage import PathDownReason, StatsEventKind

DIP_LEVEL = 0.90
BACK_LEVEL = 0.85
HOLD_S = 0.5
SETTLE_S = 0.5
REJOIN_SHARE = 0.8
LOOK_S = 3.0
"""Signs of a fault are looked for this long after its start."""
GIVEN_UP_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Crossing:
    """Payload from one host's rail to another rail of its neighbour, while a fault was in force."""

    source: Rail
    target: Rail
    bytes: int
    part: float
    """Of all that the neighbour accepted from that host in that time."""


@dataclass(frozen=True, slots=True)
class FaultResult:
    """One row of the table; seconds, None: it did not happen."""

    span: FaultSpan
    detected_s: float | None
    detected_by: str
    told_s: float | None
    steered_s: float | None
    dip_s: float
    carried: float | None
    """Part of what the surviving paths can carry; None: too short to say."""
    share: float
    rejoined_s: float | None
    back_s: float | None
    after: float | None
    """Part of full speed; None: too short to say."""
    taken: float
    """Part of the machine's CPU time that others had while the fault was in force."""
    taken_after: float
    """The same for ``after``."""
    crossing: Crossing | None
    """None: this fault leaves same-rail paths for every rail of the neighbours."""
    retransmitted_bytes: int
    flaps_seen: dict[Rail, int]

    @property
    def flaps_exact(self) -> bool:
        """Whether each rail's timeline has exactly the carrier losses injected."""
        return all(self.flaps_seen.get(rail, 0) == self.span.flaps for rail in self.span.rails)


@dataclass(frozen=True, slots=True)
class Analysis:
    """The whole run; `lab.demo.verdict` judges it."""

    throughput: Throughput
    speed: Speed
    planned: int
    """Faults that should have been played."""
    results: tuple[FaultResult, ...]
    errors: int
    corrupt_bytes: int
    clean: bool
    """Every rank ended by itself with status 0, no error, no corrupt byte."""


def analyse(recording: Recording) -> Analysis:
    """All results of a run. Spans need not be sorted; a recording without samples gives zeros."""
    flow = throughput(recording.series)
    spans = sorted(recording.spans, key=lambda span: span.start_ns)
    pace = speed(recording, flow, spans)
    results: list[FaultResult] = []
    for span, limit_ns in gaps(spans, int(flow.edges_ns[-1])):
        results.append(_one(recording, flow, pace, span, limit_ns, results))
    errors = sum(
        max(_count(end.end, "errors"), int(end.error is not None)) for end in recording.ends
    )
    return Analysis(
        throughput=flow,
        speed=pace,
        planned=recording.planned,
        results=tuple(results),
        errors=errors,
        corrupt_bytes=sum(_count(end.end, "corrupt_bytes") for end in recording.ends),
        clean=bool(recording.ends) and all(end.clean for end in recording.ends),
    )


def _one(
    recording: Recording,
    flow: Throughput,
    pace: Speed,
    span: FaultSpan,
    limit_ns: int,
    earlier: list[FaultResult],
) -> FaultResult:
    lost = list(span.rails)
    for result in earlier:
        end = result.span.end_ns
        back_ns = None if result.rejoined_s is None else end + result.rejoined_s * SECOND
        if back_ns is None or back_ns > span.start_ns:
            lost += result.span.rails
    share = surviving_share(lost, len(recording.rails))
    rejoined_s = rejoined(flow, span, limit_ns, len(recording.rails))
    back_s = None
    if rejoined_s is not None:
        from_ns = span.end_ns + round(rejoined_s * SECOND)
        back_s = back_at_full_speed(flow, pace, span.end_ns, from_ns, limit_ns)
    until = limit_ns if back_s is None else span.end_ns + round(back_s * SECOND)
    hit = flow.bins(span.start_ns, until)
    detected_s, by = detection(recording, span)
    fault = flow.bins(_later(span.start_ns, SETTLE_S), span.end_ns)
    afterwards = flow.bins(span.returned_ns, limit_ns)
    carried = _median(pace.reached[fault])
    return FaultResult(
        span=span,
        detected_s=detected_s,
        detected_by=by,
        told_s=told(recording, span),
        steered_s=steering(recording, span),
        dip_s=float(np.count_nonzero(pace.reached[hit] < DIP_LEVEL * share) * BIN_S),
        carried=None if carried is None or not share else carried / share,
        share=share,
        rejoined_s=rejoined_s,
        back_s=back_s,
        after=_median(pace.reached[afterwards]),
        taken=_mean(pace.taken[fault]),
        taken_after=_mean(pace.taken[afterwards]),
        crossing=crossing(recording, flow, span),
        retransmitted_bytes=retransmitted(recording, span.start_ns, limit_ns),
        flaps_seen={
            rail: flaps_seen(recording.events, rail, span, limit_ns) for rail in span.rails
        },
    )


def _later(t_ns: int, seconds: float) -> int:
    return t_ns + round(seconds * SECOND)


def _median(values: Floats) -> float | None:
    """None: less than `HOLD_S` of bins."""
    return float(np.median(values)) if len(values) * BIN_S >= HOLD_S - 1e-9 else None


def _mean(values: Floats) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def surviving_share(lost: list[Rail], rails: int) -> float:
    """``(n - d) / n`` for the host that lost most; 1.0 with nothing lost."""
    hosts = {host for host, _ in lost}
    worst = max((len({r for h, r in lost if h == host}) for host in hosts), default=0)
    return (rails - worst) / rails if rails else 0.0


def back_at_full_speed(
    flow: Throughput, pace: Speed, end_ns: int, from_ns: int, limit_ns: int
) -> float | None:
    """Seconds from ``end_ns`` to the first bin, not before ``from_ns``, of a window at full speed.

    The window's median and its first bin must reach `BACK_LEVEL`. None: not before ``limit_ns``.
    """
    bins = flow.bins(from_ns, limit_ns)
    reached = pace.reached[: bins.stop]
    for at, median in windows(reached, bins.start, round(HOLD_S / BIN_S)):
        if min(median, reached[at]) >= BACK_LEVEL:
            return float(flow.edges_ns[at] - end_ns) / SECOND
    return None


def rejoined(flow: Throughput, span: FaultSpan, limit_ns: int, rails: int) -> float | None:
    """Seconds from the fault's end until the last of its rails carries its share both ways."""
    worst = 0.0
    for rail in span.rails:
        for parts in (flow.sent, flow.received):
            at_s = _share_back(flow, parts, rail, span.end_ns, limit_ns, REJOIN_SHARE / rails)
            if at_s is None:
                return None
            worst = max(worst, at_s)
    return worst


def _share_back(
    flow: Throughput,
    parts: dict[Rail, Floats],
    rail: Rail,
    end_ns: int,
    limit_ns: int,
    level: float,
) -> float | None:
    own = parts.get(rail)
    if own is None:
        return None
    whole = np.sum([values for (host, _), values in parts.items() if host == rail[0]], axis=0)
    share = np.divide(own, whole, out=np.zeros_like(whole), where=whole > 0)
    bins = flow.bins(end_ns, limit_ns)
    for at, median in windows(share[: bins.stop], bins.start, round(HOLD_S / BIN_S)):
        if median >= level:
            return float(flow.edges_ns[at] - end_ns) / SECOND
    return None


def crossing(recording: Recording, flow: Throughput, span: FaultSpan) -> Crossing | None:
    """What went from rail to another rail between two ring neighbours that lost different ones.

    Rank i sends to rank i + 1 only, so whatever a host accepts comes from the one before it.
    """
    order = recording.hosts
    for host, lost in span.rails:
        for neighbour, other in span.rails:
            following = order[(order.index(host) + 1) % len(order)] if host in order else ""
            if neighbour != following or other == lost or (neighbour, lost) in span.rails:
                continue
            bins = flow.bins(_later(span.start_ns, SETTLE_S), span.end_ns)
            target = (neighbour, lost)
            got = float(np.sum(flow.received.get(target, np.zeros(0))[bins])) * BIN_S
            whole = BIN_S * sum(
                float(np.sum(values[bins]))
                for (name, _), values in flow.received.items()
                if name == neighbour
            )
            return Crossing((host, other), target, round(got), got / whole if whole else 0.0)
    return None


def detection(recording: Recording, span: FaultSpan) -> tuple[float | None, str]:
    """Seconds until the last of the span's rails was noticed, and by what."""
    worst: tuple[float, str] = (-1.0, "")
    for rail in span.rails:
        signs = [
            (event.mono_ns, _sign(event))
            for event in recording.events
            if (event.host, event.link) == rail and _sign(event)
        ]
        signs += [
            (job.event.time_ns, f"plugin ({_why(job.event.detail)})")
            for job in recording.job_events
            if (job.host, job.local) == rail and job.event.kind is StatsEventKind.PATH_DOWN
        ]
        after = [sign for sign in signs if _soon(sign[0], span)]
        if not after:
            return None, ""
        at, by = min(after)
        worst = max(worst, ((at - span.start_ns) / SECOND, by))
    return worst


def told(recording: Recording, span: FaultSpan) -> float | None:
    """Seconds until the timeline of the last of its hosts had the link as DOWN."""
    worst = 0.0
    for rail in span.rails:
        times = [
            event.mono_ns
            for event in recording.events
            if (event.host, event.link) == rail
            and event.kind is EventKind.LINK_STATE
            and event.to_state is LinkState.DOWN
            and event.mono_ns >= span.start_ns
        ]
        if not times:
            return None
        worst = max(worst, (min(times) - span.start_ns) / SECOND)
    return worst


def _sign(event: Event) -> str:
    """What a timeline row says about detection; empty: nothing."""
    if event.kind is EventKind.FLAP:
        return "carrier"
    if event.kind is EventKind.LINK_STATE and event.to_state is LinkState.DOWN:
        return f"daemon ({event.reason})" if event.reason else "daemon"
    return ""


def _why(detail: int) -> str:
    try:
        return PathDownReason(detail).name.lower().replace("_", " ")
    except ValueError:
        return str(detail)


def _soon(t_ns: int, span: FaultSpan) -> bool:
    return span.start_ns <= t_ns <= span.start_ns + LOOK_S * SECOND


def steering(recording: Recording, span: FaultSpan) -> float | None:
    """Seconds until traffic ran on survivors; see the module's text. None: it never did."""
    given_up: dict[tuple[str, tuple[int, int], int], int] = {}
    moved: dict[tuple[str, tuple[int, int], int], int] = {}
    for job in sorted(recording.job_events, key=lambda job: job.event.time_ns):
        if not _soon(job.event.time_ns, span):
            continue
        key = (job.host, job.process, job.event.comm)
        at_once = job.event.time_ns <= span.start_ns + GIVEN_UP_WITHIN_S * SECOND
        on_fault = at_once and (job.host, job.local) in span.rails
        if job.event.kind is StatsEventKind.PATH_DOWN and on_fault:
            given_up.setdefault(key, job.event.time_ns)
        elif job.event.kind is StatsEventKind.FIRST_BYTE and key in given_up:
            moved.setdefault(key, job.event.time_ns)
    if moved:
        return (max(moved.values()) - span.start_ns) / SECOND
    taken = {
        (event.host, event.link): event.mono_ns
        for event in reversed(recording.events)
        if event.kind is EventKind.STEER
        and event.data.get("weight") == 0
        and not event.peer
        and _soon(event.mono_ns, span)
    }
    times = [taken.get(rail) for rail in span.rails]
    known = [t for t in times if t is not None]
    if len(known) < len(times) or not known:
        return None
    return (max(known) - span.start_ns) / SECOND


def flaps_seen(events: list[Event], rail: Rail, span: FaultSpan, limit_ns: int) -> int:
    """Carrier losses of a rail on the timeline between the span's start and the next fault."""
    return sum(
        event.count
        for event in events
        if event.kind is EventKind.FLAP
        and (event.host, event.link) == rail
        and span.start_ns <= event.mono_ns < limit_ns
    )


def retransmitted(recording: Recording, start_ns: int, end_ns: int) -> int:
    """Growth of the retransmitted total between two moments, bytes."""
    before = after = 0
    for sample in recording.retransmits:
        if sample.t_ns <= start_ns:
            before = sample.total
        if sample.t_ns <= end_ns:
            after = sample.total
    return max(0, after - before)


def _count(end: dict[str, object] | None, name: str) -> int:
    value = (end or {}).get(name, 0)
    return value if isinstance(value, int) else 0

"""What each fault cost, from the recording alone. Pure.

Definitions, so that nobody has to trust the figures blindly:

* **Throughput** is payload accepted (``rx``) by all ranks together, in bins of `BIN_S`. Rows of the
  ranks end at different moments; within a row the bytes are taken as evenly spread.
* **Full speed** is the median bin between `WARM_UP_S` after the job's start and the first fault.
* **Share**: a ring is as fast as its slowest host, so with ``n`` rails per host and ``d`` of them
  lost on the host that lost most, what the surviving rails can carry is ``(n - d) / n`` of full
  speed. A rail counts as lost from its fault's start until the job is back at full speed.
* **Dip**: the time, from the fault's start until the job is back (or the next fault, or the end),
  that bins lie below `DIP_LEVEL` of what the surviving rails can carry.
* **Carried**: median throughput between `SETTLE_S` after the fault's start and its end, as a part
  of what the surviving rails can carry.
* **Back**: the time from the fault's end to the first bin from which throughput stays at or above
  `BACK_LEVEL` of full speed for `BACK_HOLD_S` (median, so one noisy bin neither makes nor breaks
  it).
* **Rail back**: the time from the fault's end until each of its rails carries at least
  `REJOIN_SHARE` of its fair share (1/n) of what its host sends, for `BACK_HOLD_S` (median). Other
  load on the machine moves throughput but not shares: where more than `MAX_NOISE` of the bins
  *outside* faults are low, throughput cannot tell, and the rails' return alone decides.
* **Detected**: from the fault's start to the first word of it, by the daemon of that host (carrier
  loss or state DOWN on its timeline) or by a plugin (path given up); with several rails the last.
* **Steered**: from the fault's start until every communicator that gave up a path because of it
  carried payload on a survivor (FIRST_BYTE in the stats pages); without such events, until the
  daemon took the link's weight away. A path given up more than `GIVEN_UP_WITHIN_S` after the start
  was idle: had payload been stuck on it, the job would have stood still, and the dip would show it.
* **Retransmitted**: payload sent again by all processes from the fault's start to the next one's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lab.demo.record import FaultSpan, Floats, Ints, Rail, RankSeries, Recording
from telemetry.events import Event, EventKind, LinkState
from telemetry.statspage import PathDownReason, StatsEventKind

BIN_S = 0.1
WARM_UP_S = 1.0
DIP_LEVEL = 0.90
BACK_LEVEL = 0.90
BACK_HOLD_S = 0.5
SETTLE_S = 0.5
REJOIN_SHARE = 0.8
MAX_NOISE = 0.15
DETECT_WITHIN_S = 3.0
GIVEN_UP_WITHIN_S = 1.0
MIN_CARRIED = 0.7
"""Less than this part of what the survivors can carry is a failure, not noise of the machine."""
SECOND = 1e9


@dataclass(frozen=True, slots=True)
class Throughput:
    """Bins of `BIN_S`: ``edges_ns`` [bins + 1], ``total`` [bins] and each rail's part in byte/s."""

    edges_ns: Ints
    total: Floats
    by_rail: dict[Rail, Floats]
    """Payload sent (``tx``), for the chart and the view."""


@dataclass(frozen=True, slots=True)
class FaultResult:
    """One row of the table; seconds, None: it did not happen."""

    span: FaultSpan
    detected_s: float | None
    detected_by: str
    steered_s: float | None
    dip_s: float
    carried: float | None
    """Part of what the surviving rails can carry; None: too short to say."""
    share: float
    back_s: float | None
    rejoined_s: float | None
    retransmitted_bytes: int
    flaps_seen: dict[Rail, int]

    @property
    def flaps_exact(self) -> bool:
        """Whether each rail's timeline has exactly the carrier losses injected."""
        return all(self.flaps_seen.get(rail, 0) == self.span.flaps for rail in self.span.rails)

    @property
    def moved(self) -> bool:
        """Whether the job really ran on the survivors."""
        return self.carried is None or self.carried >= MIN_CARRIED

    def ok(self, noise: float) -> bool:
        """Detected, steered, carried by the survivors, counted exactly, back again.

        Args:
            noise: `Analysis.noise`.
        """
        return (
            self.moved
            and self.detected_s is not None
            and self.steered_s is not None
            and self.rejoined_s is not None
            and (self.back_s is not None or noise > MAX_NOISE)
            and self.flaps_exact
        )


@dataclass(frozen=True, slots=True)
class Analysis:
    """The whole run."""

    throughput: Throughput
    full_speed: float
    """Byte/s of payload accepted by all ranks together."""
    results: tuple[FaultResult, ...]
    noise: float
    """Part of the bins outside all faults that lie below `DIP_LEVEL` of full speed: what a dip of
    that depth is worth on this machine."""
    errors: int
    corrupt_bytes: int
    clean: bool
    """Every rank ended with status 0, no error, no corrupt byte."""

    @property
    def ok(self) -> bool:
        """The demo showed what it promises."""
        fine = all(result.ok(self.noise) for result in self.results)
        return self.clean and bool(self.results) and fine


def throughput(series: list[RankSeries], *, bin_s: float = BIN_S) -> Throughput:
    """Resample all ranks onto common bins, from the first edge to the last of any rank."""
    filled = [s for s in series if len(s.t_ns) > 1]
    if not filled:
        return Throughput(np.zeros(1, np.int64), np.zeros(0), {})
    first = min(int(s.t_ns[0]) for s in filled)
    last = max(int(s.t_ns[-1]) for s in filled)
    bins = max(1, int((last - first) / SECOND / bin_s))
    edges = first + (np.arange(bins + 1) * bin_s * SECOND).astype(np.int64)
    total = np.zeros(bins)
    by_rail: dict[Rail, Floats] = {}
    for s in filled:
        total += _resample(edges, s.t_ns, s.rx.sum(axis=1)) / bin_s
        for column, rail in enumerate(s.rails):
            part = _resample(edges, s.t_ns, s.tx[:, column]) / bin_s
            by_rail[s.host, rail] = by_rail.get((s.host, rail), np.zeros(bins)) + part
    return Throughput(edges, total, by_rail)


def _resample(edges: Ints, t_ns: Ints, per_row: Floats) -> Floats:
    sums = np.concatenate([[0.0], np.cumsum(per_row)])
    return np.diff(np.interp(edges - edges[0], t_ns - edges[0], sums))


def analyse(recording: Recording) -> Analysis:
    """All results of a run. Spans need not be sorted; a recording without samples gives zeros."""
    flow = throughput(recording.series)
    spans = sorted(recording.spans, key=lambda span: span.start_ns)
    first_fault = spans[0].start_ns if spans else int(flow.edges_ns[-1])
    healthy = _between(flow, int(flow.edges_ns[0] + WARM_UP_S * SECOND), first_fault)
    full = float(np.median(healthy)) if len(healthy) else 0.0
    results: list[FaultResult] = []
    for span, following in pairwise([*spans, None]):
        assert span is not None
        limit = following.start_ns if following else int(flow.edges_ns[-1])
        results.append(_one(recording, flow, span, limit, full, results))
    errors = sum(
        max(_count(end.end, "errors"), int(end.error is not None)) for end in recording.ends
    )
    return Analysis(
        throughput=flow,
        full_speed=full,
        results=tuple(results),
        noise=_noise(flow, full, first_fault, results),
        errors=errors,
        corrupt_bytes=sum(_count(end.end, "corrupt_bytes") for end in recording.ends),
        clean=bool(recording.ends) and all(end.clean for end in recording.ends),
    )


def _one(
    recording: Recording,
    flow: Throughput,
    span: FaultSpan,
    limit_ns: int,
    full: float,
    earlier: list[FaultResult],
) -> FaultResult:
    lost = list(span.rails)
    for result in earlier:
        end = result.span.end_ns
        back_ns = None if result.back_s is None else end + result.back_s * SECOND
        if back_ns is None or back_ns > span.start_ns:
            lost += result.span.rails
    share = surviving_share(lost, len(recording.rails))
    back_s = back_at_full_speed(flow, span.end_ns, limit_ns, full)
    until = limit_ns if back_s is None else int(span.end_ns + back_s * SECOND)
    at_start = _between(flow, span.start_ns, until)
    carried_bins = _between(flow, int(span.start_ns + SETTLE_S * SECOND), span.end_ns)
    expected = share * full
    detected_s, by = detection(recording, span)
    return FaultResult(
        span=span,
        detected_s=detected_s,
        detected_by=by,
        steered_s=steering(recording, span),
        dip_s=float(np.count_nonzero(at_start < DIP_LEVEL * expected) * BIN_S),
        carried=float(np.median(carried_bins)) / expected
        if len(carried_bins) >= 5 and expected
        else None,
        share=share,
        back_s=back_s,
        rejoined_s=rejoined(flow, span, limit_ns, len(recording.rails)),
        retransmitted_bytes=retransmitted(recording, span.start_ns, limit_ns),
        flaps_seen={
            rail: flaps_seen(recording.events, rail, span, limit_ns) for rail in span.rails
        },
    )


def _noise(flow: Throughput, full: float, first_ns: int, results: list[FaultResult]) -> float:
    calm = [_between(flow, int(flow.edges_ns[0] + WARM_UP_S * SECOND), first_ns)]
    for result, following in pairwise(results):
        if result.back_s is not None:
            back_ns = result.span.end_ns + int((result.back_s + SETTLE_S) * SECOND)
            calm.append(_between(flow, back_ns, following.span.start_ns))
    bins = np.concatenate(calm)
    return float(np.mean(bins < DIP_LEVEL * full)) if len(bins) else 0.0


def surviving_share(lost: list[Rail], rails: int) -> float:
    """``(n - d) / n`` for the host that lost most; 1.0 with nothing lost."""
    hosts = {host for host, _ in lost}
    worst = max((len({r for h, r in lost if h == host}) for host in hosts), default=0)
    return (rails - worst) / rails if rails else 0.0


def back_at_full_speed(flow: Throughput, end_ns: int, limit_ns: int, full: float) -> float | None:
    """Seconds from ``end_ns`` to the first bin of a window of `BACK_HOLD_S` at full speed.

    The window's median and its first bin must reach `BACK_LEVEL`. None: not before ``limit_ns``.
    """
    if full <= 0:
        return None
    hold = round(BACK_HOLD_S / BIN_S)
    level = BACK_LEVEL * full
    first = int(np.searchsorted(flow.edges_ns, end_ns, side="left"))
    for at in range(first, len(flow.total) - hold + 1):
        if flow.edges_ns[at + hold] > limit_ns:
            return None
        if flow.total[at] >= level and np.median(flow.total[at : at + hold]) >= level:
            return float(flow.edges_ns[at] - end_ns) / SECOND
    return None


def rejoined(flow: Throughput, span: FaultSpan, limit_ns: int, rails: int) -> float | None:
    """Seconds from the fault's end until the last of its rails carries its share again."""
    hold = round(BACK_HOLD_S / BIN_S)
    first = int(np.searchsorted(flow.edges_ns, span.end_ns, side="left"))
    worst = 0.0
    for host, rail in span.rails:
        parts = [flow.by_rail[key] for key in flow.by_rail if key[0] == host]
        sent = flow.by_rail.get((host, rail))
        if sent is None:
            return None
        total = np.sum(parts, axis=0)
        share = np.divide(sent, total, out=np.zeros_like(total), where=total > 0)
        for at in range(first, len(total) - hold + 1):
            if flow.edges_ns[at + hold] > limit_ns:
                return None
            if np.median(share[at : at + hold]) >= REJOIN_SHARE / rails:
                worst = max(worst, float(flow.edges_ns[at] - span.end_ns) / SECOND)
                break
        else:
            return None
    return worst


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
    return span.start_ns <= t_ns <= span.start_ns + DETECT_WITHIN_S * SECOND


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


def _between(flow: Throughput, start_ns: int, end_ns: int) -> Floats:
    """Bins that lie wholly within the span, the one in which it starts included."""
    first = int(np.searchsorted(flow.edges_ns, start_ns, side="right")) - 1
    last = int(np.searchsorted(flow.edges_ns, end_ns, side="right")) - 1
    return flow.total[max(first, 0) : max(last, 0)]


def _count(end: dict[str, object] | None, name: str) -> int:
    value = (end or {}).get(name, 0)
    return value if isinstance(value, int) else 0

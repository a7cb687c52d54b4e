"""How fast the job was, as a part of its full speed, and what other processes took. Pure.

Full speed is that of the best undisturbed stretch of the same run. The job and whatever else the
machine does share its cores, caches and softirqs, so a slow second may be somebody's compiler: the
CPU time that others had is kept beside each speed, and `lab.demo.verdict` demands less for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lab.demo.record import CpuSample, FaultSpan, Floats, Ints, Rail, RankSeries, Recording

SECOND = 1e9
BIN_S = 0.1
WARM_UP_S = 1.0
CPU_WINDOW_S = 0.5
"""The tick's samples are too coarse for single bins; what others took is smoothed over this."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Bins of `BIN_S`: ``edges_ns`` [bins + 1], ``total`` [bins] and each rail's part in byte/s."""

    edges_ns: Ints
    total: Floats
    """Payload accepted by all ranks together."""
    sent: dict[Rail, Floats]
    received: dict[Rail, Floats]

    def bins(self, start_ns: int, end_ns: int) -> slice:
        """Those that lie wholly between two moments."""
        first = int(np.searchsorted(self.edges_ns, start_ns, side="left"))
        last = int(np.searchsorted(self.edges_ns, end_ns, side="right")) - 1
        return slice(first, max(first, last))


@dataclass(frozen=True, slots=True)
class Speed:
    """Arrays are [bins]."""

    full: float
    """Byte/s: median of the undisturbed stretch in which that was highest."""
    reached: Floats
    """Throughput as a part of ``full``."""
    taken: Floats
    """Part of the machine's CPU time that processes other than the demo's had, steal included."""


def throughput(series: list[RankSeries], *, bin_s: float = BIN_S) -> Throughput:
    """Resample all ranks onto common bins, from the first edge to the last of any rank.

    Rows of the ranks end at different moments; within a row the bytes are taken as evenly spread.
    """
    filled = [s for s in series if len(s.t_ns) > 1]
    if not filled:
        return Throughput(np.zeros(1, np.int64), np.zeros(0), {}, {})
    first = min(int(s.t_ns[0]) for s in filled)
    last = max(int(s.t_ns[-1]) for s in filled)
    bins = max(1, int((last - first) / SECOND / bin_s))
    edges = first + (np.arange(bins + 1) * bin_s * SECOND).astype(np.int64)
    total = np.zeros(bins)
    sent: dict[Rail, Floats] = {}
    received: dict[Rail, Floats] = {}
    for s in filled:
        for column, rail in enumerate(s.rails):
            for parts, rows in ((sent, s.tx), (received, s.rx)):
                part = _resample(edges, s.t_ns, rows[:, column]) / bin_s
                parts[s.host, rail] = parts.get((s.host, rail), np.zeros(bins)) + part
        total += _resample(edges, s.t_ns, s.rx.sum(axis=1)) / bin_s
    return Throughput(edges, total, sent, received)


def _resample(edges: Ints, t_ns: Ints, per_row: Floats) -> Floats:
    sums = np.concatenate([[0.0], np.cumsum(per_row)])
    return np.diff(np.interp(edges - edges[0], t_ns - edges[0], sums))


def stretches(spans: list[FaultSpan], first_ns: int, last_ns: int) -> list[tuple[int, int]]:
    """(from, to) of what no fault disturbs: before the first, then after each one's return.

    As many as there are spans, and one; a stretch that the next fault leaves no room for is empty.

    Args:
        spans: by start.
        first_ns: start of the job.
        last_ns: its end.
    """
    begins = [first_ns + round(WARM_UP_S * SECOND), *(span.returned_ns for span in spans)]
    ends = [*(span.start_ns for span in spans), last_ns]
    return [(begin, max(begin, end)) for begin, end in zip(begins, ends, strict=True)]


def taken(cpu: list[CpuSample], starts_ns: Ints, ends_ns: Ints) -> Floats:
    """Part of the machine's CPU time that others had in each span; zeros without samples."""
    if len(cpu) < 2:
        return np.zeros(len(starts_ns))
    zero = cpu[0].t_ns
    at = np.array([sample.t_ns - zero for sample in cpu], dtype=np.float64)

    def growth(values: list[float]) -> Floats:
        whole = np.array(values)
        until: Floats = np.interp(ends_ns - zero, at, whole)
        since: Floats = np.interp(starts_ns - zero, at, whole)
        return until - since

    total = np.maximum(growth([sample.total for sample in cpu]), 1e-9)
    others = growth([sample.total - sample.idle - sample.own for sample in cpu])
    return np.clip(others / total, 0, 1)


def speed(recording: Recording, flow: Throughput, spans: list[FaultSpan]) -> Speed:
    """Full speed from the run's own undisturbed stretches, and each bin as a part of it."""
    edges = flow.edges_ns
    full = 0.0
    for stretch in stretches(spans, int(edges[0]), int(edges[-1])):
        inside = flow.total[flow.bins(*stretch)]
        if len(inside) * BIN_S >= 1.0:
            full = max(full, float(np.median(inside)))
    half = round((CPU_WINDOW_S - BIN_S) / 2 * SECOND)
    others = taken(recording.cpu, edges[:-1] - half, edges[1:] + half)
    return Speed(full, flow.total / full if full else np.zeros(len(flow.total)), others)


def windows(values: Floats, first: int, size: int) -> list[tuple[int, float]]:
    """(index, median) of each window of ``size`` from ``first`` on."""
    return [
        (at, float(np.median(values[at : at + size])))
        for at in range(first, len(values) - size + 1)
    ]


def gaps(spans: list[FaultSpan], last_ns: int) -> list[tuple[FaultSpan, int]]:
    """Each span with the start of the next, or the end of the job."""
    return [
        (span, following.start_ns if following else last_ns)
        for span, following in pairwise([*spans, None])
        if span is not None
    ]

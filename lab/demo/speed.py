"""How fast the job was, and how fast it could have been on this machine at that time. Pure.

The job, the daemons and whatever else the machine does share its cores. So a speed is judged as a
part of what was possible then:

    expected = full × min(share, (1 - taken) / need)

``taken`` is the part of all CPU time that processes other than the demo's had (steal included),
``need`` the part that the demo itself used at full speed. With the CPU left that it needs, the
links are the limit, of which ``share`` is left while rails are lost; when others took more than was
idle, no more is expected than the rest can carry. A job that is slow on an idle machine is slow.
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
    """What was possible; arrays are [bins]."""

    full: float
    """Byte/s: median of the undisturbed stretch in which that was highest."""
    need: float
    """Part of the machine's CPU time that the demo used in that stretch; 0: not known."""
    taken: Floats
    """Part of the machine's CPU time that others had."""
    left: Floats
    """Part of ``full`` that the CPU left to the demo can carry, at most 1."""
    reached: Floats
    """Throughput as a part of ``full``."""

    def relative(self, share: float = 1.0) -> Floats:
        """Throughput as a part of what was possible with that share of the links."""
        return self.reached / np.maximum(np.minimum(share, self.left), 1e-3)


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


def shares(cpu: list[CpuSample], starts_ns: Ints, ends_ns: Ints) -> tuple[Floats, Floats]:
    """(own, taken): parts of the machine's CPU time in each span; zeros without samples."""
    if len(cpu) < 2:
        return np.zeros(len(starts_ns)), np.zeros(len(starts_ns))
    zero = cpu[0].t_ns
    at = np.array([sample.t_ns - zero for sample in cpu], dtype=np.float64)

    def growth(values: list[float]) -> Floats:
        whole = np.array(values)
        until: Floats = np.interp(ends_ns - zero, at, whole)
        since: Floats = np.interp(starts_ns - zero, at, whole)
        return until - since

    total = np.maximum(growth([sample.total for sample in cpu]), 1e-9)
    idle = growth([sample.idle for sample in cpu])
    own = growth([sample.own for sample in cpu])
    return np.clip(own / total, 0, 1), np.clip((total - idle - own) / total, 0, 1)


def speed(recording: Recording, flow: Throughput, spans: list[FaultSpan]) -> Speed:
    """What was possible in each bin, from the run's own undisturbed stretches."""
    edges = flow.edges_ns
    calm = stretches(spans, int(edges[0]), int(edges[-1]))
    best, full = (int(edges[0]), int(edges[-1])), 0.0
    for stretch in calm:
        inside = flow.total[flow.bins(*stretch)]
        if len(inside) * BIN_S >= 1.0 and float(np.median(inside)) > full:
            best, full = stretch, float(np.median(inside))
    own, _ = shares(recording.cpu, np.array([best[0]]), np.array([best[1]]))
    need = float(own[0])
    half = round((CPU_WINDOW_S - BIN_S) / 2 * SECOND)
    _, taken = shares(recording.cpu, edges[:-1] - half, edges[1:] + half)
    left = np.minimum(1.0, (1.0 - taken) / need) if need else np.ones(len(taken))
    reached = flow.total / full if full else np.zeros(len(taken))
    return Speed(full, need, taken, left, reached)


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

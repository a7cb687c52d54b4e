"""Slow rails: one that takes longer for the same job's messages than its siblings do. Pure.

Collectives spread their bytes evenly over the rails and wait for the last one, so a slow rail does
not carry less than the others; it is busy while they wait. What shows it is the delivery time of
its messages (from posting to the peer's acknowledgement, as the stats pages count it), as long as
its bytes are outstanding.

What it is compared with is the median of the same job's other rails on this host: whatever slows
all of them (a busy peer, a receiver that posts late, large messages) is no rail's fault. A rail
that carries more than the others may take longer; messages of another size are not compared.
A slow port of the *peer* looks the same from here unless its own host says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from telemetry.jobtotals import MAX_STEP
from telemetry.statsdir import ProcessPage
from telemetry.statspage import StatsRail


@dataclass(frozen=True, slots=True)
class RailRules:
    """Parameters; scans are a second apart."""

    window: int = 8
    """Scans that are compared together: a few steps of a training job."""
    enter: int = 3
    """Scans in a row; with the window it takes some five seconds."""
    leave: int = 5
    ratio: float = 1.5
    """Mean delivery time against the siblings'. A NIC at half its PCIe width is at 2."""
    typical_ratio: float = 1.25
    """The median's (buckets are octaves): one long outage makes a mean, not a slow rail."""
    keep_ratio: float = 1.2
    """Below this it is no longer slow."""
    least_ns: int = 200_000
    """Of the difference: less is the host's noise."""
    messages: int = 20
    """Fewer in the window say nothing."""
    busier: float = 1.25
    """A rail that carries so many times its siblings' bytes may take longer."""
    alike: float = 2.0
    """Bytes a message: farther apart, they are not compared."""
    outstanding: float = 0.5
    """Of the scans: so often bytes must be on their way."""
    forget: int = 30
    """Scans without traffic after which a slow rail is no longer said to be so."""


@dataclass(slots=True)
class Use:
    """What a job did with one rail between two scans, or in several; bytes, nanoseconds."""

    tx_bytes: int = 0
    messages: int = 0
    latency_ns: int = 0
    buckets: tuple[int, ...] = ()
    busy: int = 0
    """Scans at which bytes were on their way."""
    scans: int = 0

    @property
    def mean_ns(self) -> float:
        """Of the delivery times."""
        return self.latency_ns / self.messages

    @property
    def typical_ns(self) -> float:
        """Their median, straight within its octave."""
        wanted, seen = self.messages / 2, 0
        for index, count in enumerate(self.buckets):
            if count and seen + count >= wanted:
                low = 2.0 ** (index - 1) if index else 0.0
                return 1e3 * (low + (2.0**index - low) * (wanted - seen) / count)
            seen += count
        return 0.0


def together(uses: Iterable[Use]) -> Use:
    """All of them."""
    out = Use()
    for use in uses:
        out.tx_bytes += use.tx_bytes
        out.messages += use.messages
        out.latency_ns += use.latency_ns
        out.buckets = add(out.buckets, use.buckets)
        out.busy += use.busy
        out.scans += use.scans
    return out


def add(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Two rows of counts; an empty one is all zeros."""
    if not a or not b:
        return tuple(a or b)
    return tuple(x + y for x, y in zip(a, b, strict=True))


def between(old: StatsRail, new: StatsRail) -> Use | None:
    """What happened between two looks at a process's rail; None: it cannot be."""
    steps = (
        new.tx_bytes - old.tx_bytes,
        new.latency.count - old.latency.count,
        new.latency.sum_ns - old.latency.sum_ns,
    )
    counts = [b - a for a, b in zip(old.latency.buckets, new.latency.buckets, strict=True)]
    if min(*steps, *counts) < 0 or max(steps) > MAX_STEP:
        return None
    return Use(*steps, tuple(counts), int(new.in_flight_bytes > 0), 1)


@dataclass(frozen=True, slots=True)
class SlowClaim:
    """One job's comparison by which a rail is slow: the word of the user whose pages these are."""

    uid: int
    job: str
    text: str


Job = tuple[int, str, str]
"""(uid, subdirectory, name): one job's processes on this host."""


@dataclass(slots=True)
class _Rail:
    window: deque[Use]
    run: int = 0
    slow: bool = False
    idle: int = 0
    text: str = ""


@dataclass(slots=True)
class SlowRails:
    """Compares the rails of each job.

    Attributes:
        compared: rails that could be compared at the last scan.
    """

    rules: RailRules = field(default_factory=RailRules)
    compared: frozenset[str] = frozenset()
    _last: dict[tuple[int, int, int], dict[str, StatsRail]] = field(default_factory=dict)
    _jobs: dict[Job, dict[str, _Rail]] = field(default_factory=dict)

    def feed(self, pages: Iterable[ProcessPage]) -> None:
        """Take one scan of all stats pages."""
        for _ in self.steps(pages):
            pass

    def steps(self, pages: Iterable[ProcessPage]) -> Iterator[None]:
        """As `feed`, a page at a step: between two the caller may do something else."""
        last, self._last = self._last, {}
        used: dict[Job, dict[str, Use]] = {}
        for process in pages:
            yield
            if not process.alive:
                continue
            key = (process.uid, *process.page.key)
            rails = {rail.netdev: rail for rail in process.page.rails}
            self._last[key] = rails
            before = last.get(key)
            if before is None:
                continue
            job = (process.uid, process.subdirectory, process.page.job)
            mine = used.setdefault(job, {})
            for netdev, rail in rails.items():
                use = between(before[netdev], rail) if netdev in before else None
                if use is not None:
                    so_far = mine.get(netdev)
                    mine[netdev] = use if so_far is None else _of_one_scan(so_far, use)
        self._jobs = {job: self._jobs.get(job, {}) for job in used}
        compared: set[str] = set()
        for job, uses in used.items():
            compared |= self._job(self._jobs[job], uses)
        self.compared = frozenset(compared)

    def slow(self) -> dict[str, tuple[SlowClaim, ...]]:
        """Slow rails by netdev, with the jobs that say so."""
        found: dict[str, tuple[SlowClaim, ...]] = {}
        for (uid, _, job), rails in self._jobs.items():
            for netdev, rail in rails.items():
                if rail.slow:
                    found[netdev] = (*found.get(netdev, ()), SlowClaim(uid, job, rail.text))
        return found

    def _job(self, rails: dict[str, _Rail], uses: Mapping[str, Use]) -> set[str]:
        for netdev, use in uses.items():
            if netdev not in rails:
                rails[netdev] = _Rail(deque(maxlen=self.rules.window))
            rails[netdev].window.append(use)
        sums = {netdev: together(rail.window) for netdev, rail in rails.items()}
        busy = {n: use for n, use in sums.items() if use.messages >= self.rules.messages}
        compared = set()
        for netdev, rail in rails.items():
            siblings = [
                use for n, use in busy.items()
                if n != netdev and netdev in busy and self._alike(busy[netdev], use)
            ]  # fmt: skip
            if not siblings:
                rail.run = 0
                rail.idle += 1
                rail.slow = rail.slow and rail.idle < self.rules.forget
                continue
            compared.add(netdev)
            rail.idle = 0
            self._compare(rail, busy[netdev], siblings)
        return compared

    def _alike(self, a: Use, b: Use) -> bool:
        """Whether their messages are of about the same size."""
        one, two = a.tx_bytes / a.messages, b.tx_bytes / b.messages
        return max(one, two) <= self.rules.alike * min(one, two)

    def _compare(self, rail: _Rail, own: Use, siblings: Sequence[Use]) -> None:
        rules = self.rules
        mean = median([use.mean_ns for use in siblings])
        typical = median([use.typical_ns for use in siblings])
        lags = (
            own.mean_ns >= (rules.keep_ratio if rail.slow else rules.ratio) * mean
            and own.mean_ns - mean >= rules.least_ns
        )
        if not rail.slow:
            lags = (
                lags
                and own.typical_ns >= rules.typical_ratio * typical
                and own.tx_bytes <= rules.busier * median([use.tx_bytes for use in siblings])
                and own.busy >= rules.outstanding * own.scans
            )
        if lags:
            rail.text = (
                f"messages take {own.mean_ns / 1e6:.3g} ms here, {mean / 1e6:.3g} ms on "
                f"{len(siblings)} other rail{'s' if len(siblings) > 1 else ''} of the same job"
            )
        if lags == rail.slow:
            rail.run = 0
            return
        rail.run += 1
        if rail.run >= (rules.enter if lags else rules.leave):
            rail.slow, rail.run = lags, 0


def _of_one_scan(a: Use, b: Use) -> Use:
    """Two processes of a job at the same scan."""
    both = together((a, b))
    both.busy, both.scans = int(a.busy or b.busy), 1
    return both

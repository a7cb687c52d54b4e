"""A sequential test: has a rare event become frequent? Pure.

The statistic is Page's CUSUM (Biometrika 41, 1954) over the log-likelihood ratio of "sick" against
"normal" for counted events: k events in an exposure x (packets, or seconds) add

    k · ln(sick / normal)  −  (sick − normal) · x

nats, the Poisson form of Wald's SPRT (1947), which for the small rates here is the Bernoulli one to
four digits. It is cut at 0, so an old healthy past delays nothing; it says *sick* from `threshold`
on and *well* again at 0. By Lorden's bound (1971) a normal stream raises a false alarm after
e**threshold units in the mean or later, and no test with that bound is quicker on a sick one.

Real losses come in bursts, which the model does not know: within `Test.step_ns` it rises by at most
`Test.step_share` of the threshold, so that a short burst, however dense, is no verdict, and reading
more often makes none.

The way back has a test of its own. A test for one event in 2,000 packets drains so slowly that a
path of 33 packets a second would be called sick for ten minutes after it became well. A stream that
was sick at rate r is well again after x units without evidence if r would have shown in them: the
likelihood of r is e**(−r·x). So a high rate is forgotten soon, and a low one is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Test:
    """Parameters. Rates are events per unit of exposure."""

    normal: float
    """The rate of a healthy link: at most this."""
    sick: float
    """The least rate that is to be found."""
    threshold: float = 14.0
    """Nats."""
    step_share: float = 0.4
    """At most this share of the threshold is added within `step_ns`."""
    step_ns: int = 500_000_000
    """With a share of 0.4: what is over within 0.75 s makes no verdict."""
    ceiling: float = 1.5
    """The statistic is kept below this many thresholds, so that the way back is bounded."""
    back: float = 1.0
    """While sick a unit of exposure takes away so many times as much: a test that must not miss a
    weak change is patient, and would be as patient with the end of one."""
    forget: float = math.inf
    """Nats against the rate that it was sick at, of the time since the last evidence, that make it
    well again. Infinite: only the way back to 0 does."""
    forget_ns: int = 10 * 10**9
    """And that time is at least so long: what pauses is not over."""

    def __post_init__(self) -> None:
        if not 0 < self.normal < self.sick:
            raise ValueError(f"rates must be 0 < normal < sick, got {self.normal}, {self.sick}")
        if self.threshold <= 0 or not 0 < self.step_share <= 1 or self.ceiling < 1:
            raise ValueError("threshold > 0, 0 < step_share <= 1 and ceiling >= 1 are needed")
        if self.back < 1:
            raise ValueError("back >= 1 is needed")
        if self.step_ns <= 0:
            raise ValueError("step_ns > 0 is needed")
        if self.forget <= 0 or self.forget_ns < 0:
            raise ValueError("forget > 0 and forget_ns >= 0 are needed")

    @property
    def gain(self) -> float:
        """Nats that one event adds."""
        return math.log(self.sick / self.normal)

    @property
    def cost(self) -> float:
        """Nats that one unit of exposure takes away."""
        return self.sick - self.normal

    @property
    def least_found(self) -> float:
        """A stream above this rate is found sooner or later, one below never."""
        return self.cost / self.gain

    def nats(self, events: float, exposure: float) -> float:
        """What so much evidence adds, uncut."""
        return events * self.gain - exposure * self.cost


RECENT = 16
"""The rate that a stream is sick at is that of so many events, the newest."""


@dataclass(slots=True)
class _Recovery:
    """Of a stream that is sick: for how long nothing speaks against it, and what that says.

    Attributes:
        since_ns: when the time without evidence began.
        nats: of that time, against the rate at which the stream was sick.
        evidence: nats of the ordinary test in that time; above 0 it is over.
        events, exposure: the newest ones, which make the rate.
        rate: a lower bound of it, as of the last event.
    """

    since_ns: int | None = None
    nats: float = 0.0
    evidence: float = 0.0
    events: float = 0.0
    exposure: float = 0.0
    rate: float = 0.0

    def count(self, events: float, exposure: float) -> None:
        """Take what was read, for the rate."""
        self.events += events
        self.exposure += exposure
        if not events:
            return
        if self.events > RECENT:
            self.exposure *= RECENT / self.events
            self.events = RECENT
        # One standard deviation of a Poisson count below the mean, at least half of it: few events
        # that came together by chance would make a high rate, and a quick return.
        least = max(self.events - math.sqrt(self.events), self.events / 2)
        self.rate = least / max(self.exposure, self.events)

    def step(self, test: Test, nats: float, exposure: float, now: int) -> bool:
        """Take one reading of a sick stream; returns whether it is well again."""
        self.evidence += nats
        self.nats += self.rate * exposure
        if self.evidence > 0 or self.since_ns is None:
            self.since_ns, self.nats, self.evidence = now, 0.0, 0.0
        return self.nats >= test.forget and now - self.since_ns >= test.forget_ns


@dataclass(slots=True)
class Cusum:
    """The statistic of one stream.

    Attributes:
        value: nats, 0 or more.
        sick: the verdict now.
        since_ns: when the statistic last left 0: the likeliest time of the change.
        events, exposure: counted since then.
    """

    value: float = 0.0
    sick: bool = False
    since_ns: int = 0
    events: float = 0.0
    exposure: float = 0.0
    _last_ns: int = field(default=0, repr=False)
    _room: float = field(default=0.0, repr=False)
    """Nats that may be added at once, as of ``_room_ns``."""
    _room_ns: int = field(default=0, repr=False)
    _recovery: _Recovery | None = field(default=None, repr=False)
    """While evidence accumulates."""

    def step(self, test: Test, nats: float, events: float, exposure: float, now: int) -> bool:
        """Take the evidence of one reading; returns the verdict.

        Args:
            test: parameters of threshold, step and ceiling.
            nats: sum of `Test.nats` over what was read (tests may differ by their rates).
            events: read now, for the estimate of the rate.
            exposure: likewise.
            now: CLOCK_MONOTONIC ns.
        """
        before = self.value
        if before == 0.0 and nats <= 0.0:  # nearly always
            self.quiet(now)
            return False
        most = test.step_share * test.threshold
        # A first reading, or one after a long time, may add the whole of it.
        share = (now - self._room_ns) / test.step_ns if self._room_ns else 1.0
        room = min(most, self._room + most * max(0.0, share))
        recovery = self._recovery = self._recovery or _Recovery()
        recovery.count(events, exposure)
        over = self.sick and recovery.step(test, nats, exposure, now)
        if self.sick:
            nats -= (test.back - 1) * test.cost * exposure
        added = min(nats, room)
        self._room, self._room_ns = room - max(0.0, added), now
        self.value = 0.0 if over else min(max(0.0, before + added), test.ceiling * test.threshold)
        if self.value == 0.0:
            self.sick, self.events, self.exposure, self._recovery = False, 0.0, 0.0, None
        else:
            if before == 0.0:
                self.since_ns = self._last_ns or now
            self.events += events
            self.exposure += exposure
            self.sick = self.sick or self.value >= test.threshold
        self._last_ns = now
        return self.sick

    def quiet(self, now: int) -> None:
        """As `step` with nothing seen, while the statistic is 0."""
        self._last_ns = now

    @property
    def rate(self) -> float:
        """Events per unit of exposure since the change; 0 when there is none."""
        return self.events / self.exposure if self.exposure else 0.0

    @property
    def started(self) -> bool:
        """Whether evidence is accumulating."""
        return self.value > 0.0

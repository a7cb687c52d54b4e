"""What the demo plays, in order: chapters of one or two faults, each on rails of its own.

Between chapters there is time for the hold-down (2 s) or the damping (10 s after the flaps) to let
the rail return, so each one starts from full speed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lab.demo.record import FaultSpan
from lab.faults.catalog import BlackHole, Carrier, Fault
from lab.faults.flap import Flap
from lab.faults.schedule import Step
from lab.faults.truth import Row
from lab.topology import Topology

HOSTS = 4
RAILS = 4
SECONDS = 60.0
QUEUE_BYTES = 400_000
"""Of each shaper: 21 ms at the default rate. With less, two flows on one
survivor drop each other's tails, and TCP's 200 ms retransmission timeout is all one sees; with much
more, the queue alone is longer than the plugin waits for an acknowledgement (60 ms)."""
RATE = "150mbit"
"""Of each link. A ring over 16 links of 500 Mbit/s, each byte verified, with 4 daemons and probers
beside it, takes nearly all of two cores, one of 200 Mbit/s all of two slow ones; then the CPU is
what the faults would be measured on."""
HOLD_DOWN_S = 2.0
DAMPING_CAP_S = 10.0
TAIL_S = 1.5
"""Beyond a chapter's return this much is played, so that the return can be seen."""

HOLD = {"hold_down_s": HOLD_DOWN_S}
DAMPING = {"max_suppress_s": DAMPING_CAP_S}
"""Tables of fabricd.toml."""


@dataclass(slots=True)
class Chapter:
    """Faults that begin together ``at`` seconds and last ``seconds``."""

    title: str
    kind: str
    at: float
    seconds: float
    targets: tuple[str, ...]
    returns_after: float
    """Seconds after the end by which the job is back at full speed, one second included."""
    flaps: int = 0
    """Cycles of a flap, 0 for other kinds."""
    note: str = ""
    """What there is to see, for the live log."""
    faults: list[Fault] = field(default_factory=list)

    @property
    def rails(self) -> tuple[tuple[str, str], ...]:
        """(host, interface) of each target."""
        pairs = (target.split(":", 1) for target in self.targets)
        return tuple((host, rail) for host, rail in pairs)

    @property
    def over_at(self) -> float:
        """When the job is back, seconds since the start."""
        return self.at + self.seconds + self.returns_after

    def steps(self) -> list[Step]:
        """The faults, made anew."""
        self.faults = [self._fault(target) for target in self.targets]
        # A flap ends by itself; it is taken back a little later.
        seconds = self.seconds + 0.3 if self.flaps else self.seconds
        return [Step(self.at, fault, seconds) for fault in self.faults]

    def _fault(self, target: str) -> Fault:
        if self.kind == "blackhole":
            return BlackHole(target)
        if self.kind == "flap":
            return Flap(target, 1000 * self.seconds / self.flaps, self.flaps)
        return Carrier(target)

    def span(self, truth: Iterable[Row]) -> FaultSpan | None:
        """What the ground truth says of it; None: it was not played to its end."""
        ids = {fault.id for fault in self.faults}
        rows = [row for row in truth if row.get("id") in ids]
        if self.flaps:
            starts = [row["t_ns"] for row in rows if row["phase"] == "down"]
            ends = [row["t_ns"] for row in rows if row["phase"] == "up"]
            losses = len(starts)
        else:
            starts = [row["t_ns"] for row in rows if row["phase"] == "start"]
            ends = [row["t_ns"] for row in rows if row["phase"] == "end"]
            losses = 1 if self.kind == "carrier" else 0
        if not starts or len(ends) < len(starts):
            return None
        return FaultSpan(
            title=self.title,
            kind=self.kind,
            rails=self.rails,
            start_ns=min(starts),
            end_ns=max(ends),
            flaps=losses,
            returns_within_s=self.returns_after,
        )


def topology(name: str, rate_bps: int) -> Topology:
    """The demo's lab at that speed of each link, bit/s."""
    queue_us = round(QUEUE_BYTES * 8e6 / rate_bps)
    return Topology(name, HOSTS, RAILS, rate_bps=rate_bps, queue_us=queue_us)


def chapters(seconds: float = SECONDS) -> list[Chapter]:
    """Those that fit into a job of ``seconds``.

    Raises:
        ValueError: not even the first one fits.
    """
    hold = HOLD_DOWN_S + 1
    story = [
        Chapter("NIC unplugged", "carrier", 5, 5, ("h1:rail1",), hold),
        Chapter("NIC flapping, 20 × 200 ms", "flap", 15, 4, ("h2:rail2",), DAMPING_CAP_S + 1, 20),
        Chapter("black hole, carrier up", "blackhole", 32, 5, ("h3:rail0",), hold),
        Chapter("two NICs of one host", "carrier", 42, 4, ("h0:rail1", "h0:rail3"), hold),
        Chapter(
            "two neighbours, different rails",
            "carrier",
            51,
            4,
            ("h1:rail0", "h2:rail3"),
            hold,
            note="h1 → h2 has no rail 0 and no rail 3: there, only h1 rail3 → spines → h2 rail0"
            " is left",
        ),
    ]
    fitting = [chapter for chapter in story if chapter.over_at + TAIL_S <= seconds]
    if not fitting:
        needed = story[0].over_at + TAIL_S
        raise ValueError(f"{seconds:g} s is too short: the first fault needs {needed:g} s")
    return fitting

"""What the test of gray loss (`fabricd.detect.loss`) goes by, is given and says. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fabricd.detect.locate import Blame, Kind
from fabricd.detect.locate import Rules as PlaceRules
from fabricd.detect.rules import RULES
from fabricd.detect.sequential import Test

REORDER = 8
"""Packets after which the prober takes an absent one for lost (kReorder in its window.h)."""
TRAIN = 3
"""Packets so many places below the newest are believed lost sooner, by the bitmap: more than a
train's length away is 10 ms away, and no packet is overtaken by so much."""
ALONE_NS = 5_000_000
"""On a path without trains whose packets are so far apart, one newer packet says as much."""
FULL = (1 << 64) - 1
SICK = RULES["probe_lost_rx"].threshold / 2
"""The rate that is asked has to be found in time nearly always, and not half of the times: the test
looks for half of it."""


@dataclass(frozen=True, slots=True)
class LossRules:
    """Parameters."""

    idle: Test = field(
        default_factory=lambda: Test(
            3e-6, SICK, 20.0, step_share=0.45, ceiling=1.2, back=2.5, forget=8.0
        )
    )
    """Losses per packet. Normal: Ethernet and InfiniBand links within their error budget (BER
    1e-12 after FEC) lose less than 1e-8; the rest is room for hosts and switches. Four losses
    within two seconds at 400 packets/s are a verdict, or five within half a minute. Ten seconds
    without a loss make it well again, if the loss that it had would have shown in that time."""
    path_forget: float = 6.0
    """Of a path alone: it has a tenth of a link's packets and is to be well as soon."""
    usual: float = 1e-5
    """The most that a link may get us used to (`fabricd.detect.baseline_rate`)."""
    congested: Test = field(default_factory=lambda: Test(1e-2, 1e-1, threshold=18.0, ceiling=1.2))
    queue_ns: int = 300_000
    """A round trip so far above its least is a standing queue: 3.75 MB at 100 Gbit/s."""
    stall_ns: int = 500_000_000
    """A gap of our prober from which its sockets may have overflowed: they hold a second and more
    (`kReceiveBuffer` in its probe_socket.cpp). Shorter ones are every day's on a busy host."""
    min_peers: int = 2
    places: PlaceRules = field(default_factory=lambda: PlaceRules(host=PlaceRules().link))
    """That hosts die often says nothing about who loses one packet in a thousand."""
    confidence: float = 0.8
    """That it is the link or its leaf."""
    confidence_shared: float = 0.95
    """That it is a host, a leaf or a spine: two lossy ports look like one at first."""
    confidence_path: float = 0.99
    """That it is one pair of ports alone. The port at its other end may lose from everybody, which
    this host sees by the few packets of cross-rail paths: its first losses there may be late."""
    shared: float = math.log(4)
    """Nats by which all peers share the losses rather than one have its own: odds of 80 % again."""
    settle_ns: int = 10**9
    """After an outage or gap, until losses were found: so long, and `REORDER` + 2 packets."""


class LossCounters(NamedTuple):
    """Cumulative packets of one path since its prober's start."""

    path: int
    link: int
    rail: int
    peer: str
    peer_rail: int
    sent: int
    received: int
    rx_lost: int
    tx_lost: int
    rx_bitmap: int = FULL
    tx_bitmap: int = FULL
    interval_ns: int = 100_000_000
    """Of the single packets."""
    trains: bool = False
    """Packets come in threes as well."""
    queue_ns: int = 0
    """Round trip above its least."""
    outage: bool = False
    """The path or its link is out now, for a reason that is known."""


class LossCount(NamedTuple):
    """Packets lost, of so many."""

    lost: float = 0.0
    packets: float = 0.0

    def since(self, before: LossCount) -> LossCount:
        """What came since then."""
        return LossCount(self.lost - before.lost, self.packets - before.packets)

    def plus(self, other: LossCount) -> LossCount:
        """Both together."""
        return LossCount(self.lost + other.lost, self.packets + other.packets)


@dataclass(frozen=True, slots=True)
class LossVerdict:
    """Who is worse than it should be, and why."""

    links: Mapping[int, str] = field(default_factory=dict)
    paths: Mapping[int, str] = field(default_factory=dict)
    blames: Sequence[Blame] = ()
    """Where, as far as losses tell: what is new."""
    at: Mapping[int, Blame] = field(default_factory=dict)
    """Link index → where the losses come from of a link that is worse, as last asked."""
    elsewhere: Sequence[Blame] = ()
    """Hosts that lose on all rails, and where the losses come from of paths that are worse alone,
    as last asked."""


def loss_ratio(lost: float, packets: float, rate: float, normal: float) -> float:
    """The ratio of a flow that lost ``lost`` of ``packets`` if a sick one loses at ``rate``."""
    if rate <= normal or packets <= 0:
        return 0.0
    return lost * math.log(rate / normal) - (rate - normal) * packets


def holes(bitmap: int, newer: int = TRAIN) -> int:
    """Packets absent in a bitmap (bit i: highest − i arrived) and not yet counted as lost.

    Only below an older one that arrived: what came before the first heard is nobody's loss. And
    only from ``newer`` places below the newest on.
    """
    oldest = min(bitmap.bit_length(), REORDER)
    if oldest <= newer:
        return 0
    return oldest - newer - (bitmap >> newer & (1 << (oldest - newer)) - 1).bit_count()


def is_part_of(host: str, blame: Blame) -> bool:
    """Whether an answer is about a host, a port of it, or a path of it."""
    if blame.kind is Kind.HOST:
        return blame.element == host
    port = rf"(?:\A|/\d+-){re.escape(host)}/"
    return blame.kind in (Kind.LINK, Kind.PATH) and re.search(port, blame.element) is not None


def shared_ratio(seen: Sequence[tuple[float, float]], usual: float) -> float:
    """Ln P(seen | all peers lose alike) − ln P(seen | the worst has a rate of its own).

    In the second case the others lose what is ``usual``. A peer that loses much beside one chance
    loss of another makes the mean rate of both that of neither: `locate` knows only that one.

    Args:
        seen: (lost, packets) of each peer.
        usual: losses per packet.
    """
    worst = max(seen, key=lambda item: item[0], default=(0.0, 0.0))
    lost, packets = (sum(column) for column in zip(*seen, strict=True)) if seen else (0.0, 0.0)
    if lost <= 0 or packets <= 0:
        return 0.0
    rate, own = lost / packets, worst[0] / max(worst[1], worst[0])
    others = loss_ratio(lost - worst[0], packets - worst[1], rate, usual)
    return others - loss_ratio(*worst, own, rate)

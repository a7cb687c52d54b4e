"""A made-up run of the demo whose figures are known, for the tests of analysis and report."""

import itertools

import numpy as np

from lab.demo.record import (
    FaultSpan,
    JobEvent,
    RankEnd,
    RankSeries,
    Recording,
    RetransmitSample,
)
from telemetry.events import Event, EventKind, LinkState
from telemetry.statspage import StatsEvent, StatsEventKind

HOSTS = ("h0", "h1", "h2", "h3")
RAILS = ("rail0", "rail1", "rail2", "rail3")
T0 = 5_000 * 10**9
WALL0 = 1_800_000_000 * 10**9
RAIL_BPS = 62.5e6


def ns(at_s):
    return T0 + round(at_s * 1e9)


def span(start, end, *rails, title="NIC unplugged", kind="carrier", flaps=1):
    return FaultSpan(title, kind, tuple(rails), ns(start), ns(end), flaps)


def series(level, *, seconds=20.0, step=0.1, shift=0.0):
    """All ranks' samples; ``level(t)`` is the part of full speed at t seconds."""
    out = []
    for number, host in enumerate(HOSTS):
        # Ranks do not sample at the same moments.
        edges = np.arange(0, seconds + 1e-9, step) + shift * number
        fine = 20
        rows = []
        for left, right in itertools.pairwise(edges):
            moments = left + (np.arange(fine) + 0.5) * (right - left) / fine
            mean = np.mean([level(t) for t in moments])
            rows.append([RAIL_BPS * (right - left) * mean] * len(RAILS))
        t_ns = (T0 + edges * 1e9).astype(np.int64)
        data = np.array(rows)
        out.append(RankSeries(host, RAILS, t_ns, data, data.copy()))
    return out


def link_event(at_s, host, link, old, new, reason=""):
    return Event(
        kind=EventKind.LINK_STATE,
        wall_ns=WALL0 + round(at_s * 1e9),
        mono_ns=ns(at_s),
        host=host,
        link=link,
        from_state=LinkState[old],
        to_state=LinkState[new],
        reason=reason,
    )


def flap(at_s, host, link, count=1):
    return Event(
        kind=EventKind.FLAP,
        wall_ns=WALL0 + round(at_s * 1e9),
        mono_ns=ns(at_s),
        host=host,
        link=link,
        count=count,
    )


def steer(at_s, host, link, weight=0):
    return Event(
        kind=EventKind.STEER,
        wall_ns=WALL0 + round(at_s * 1e9),
        mono_ns=ns(at_s),
        host=host,
        link=link,
        data={"weight": weight},
    )


def job(at_s, host, local, kind, comm=1, detail=0):
    event = StatsEvent(0, ns(at_s), comm, StatsEventKind[kind], 0, None, detail)
    return JobEvent(host, (1, 1), event, local)


def end(host, **more):
    row = {"iterations": 10, "bytes": 10**9, "seconds": 20.0, "busbw_gbps": 1.5, "errors": 0}
    return RankEnd(host, 0, row | {"corrupt_bytes": 0} | more)


def run(level, spans, **more):
    return Recording(
        start_ns=T0,
        start_wall_ns=WALL0,
        hosts=HOSTS,
        rails=RAILS,
        series=more.pop("series", None) or series(level),
        ends=more.pop("ends", None) or [end(host) for host in HOSTS],
        spans=list(spans),
        **more,
    )


def one_fault():
    """A NIC unplugged at 5 s for 5 s; an outage of 0.3 s, 75 % until it is back at 12.2 s."""

    def level(t):
        if 5.0 <= t < 5.3:
            return 0.2
        return 0.75 if 5.3 <= t < 12.2 else 1.0

    return run(
        level,
        [span(5, 10, ("h1", "rail1"))],
        events=[
            flap(5.002, "h1", "rail1"),
            link_event(5.003, "h1", "rail1", "UP", "DOWN", "carrier lost"),
            steer(5.004, "h1", "rail1"),
            link_event(10.01, "h1", "rail1", "DOWN", "HOLD", "carrier is back"),
            link_event(12.1, "h1", "rail1", "HOLD", "PROBATION", "hold-down over"),
            steer(12.1, "h1", "rail1", 1000),
            Event(kind=EventKind.DAEMON, wall_ns=WALL0, mono_ns=ns(-1), host="h1", reason="start"),
        ],
        job_events=[
            job(5.0025, "h1", "rail1", "PATH_DOWN", comm=1, detail=5),
            job(5.004, "h0", "rail1", "PATH_DOWN", comm=2, detail=4),
            job(5.010, "h1", "rail2", "FIRST_BYTE", comm=1),
            job(5.041, "h1", "rail0", "FIRST_BYTE", comm=3),
        ],
        retransmits=[
            RetransmitSample(ns(t), total)
            for t, total in ((0, 0), (4.9, 1000), (5.5, 501_000), (19, 601_000))
        ],
    )

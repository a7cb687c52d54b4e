"""A host with faults of several kinds and a job, whose control socket really answers.

The daemon's own handlers, its store and a page of a job; the states are set by hand, for there is
no network. `LINKS` says what is wrong where.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time

from control_sockets import served
from stats_page_files import lay
from stats_page_files import make as page
from whole_host import WholeHost, link_tables, peer_tables

from fabricd.config.source import ConfigSource
from fabricd.control.requests import LARGE, Requests
from fabricd.views.services import Services
from telemetry.events import Event, EventKind
from telemetry.events import LinkState as S
from telemetry.timeline import Timeline

JOB = "gpt-17b"
RAILS = 8
MS = 10**6
FLAPS = 13
FIRST = "no carrier: cable, optics or the port of the leaf"
STORY_S = 1500
"""The story of the timeline began so long ago."""

LINKS = {
    "rail1": (S.DOWN, FIRST),
    "rail2": (S.DEGRADED, "2.1 % of probes to a, b, c lost, sent by this host, for 41 s"),
    "rail3": (S.HOLD, "the carrier is back; 13 flaps within the hour: damped till that decayed"),
    "rail5": (S.SUSPECT, "nothing heard from a, b, c over this link, two other links hear them"),
}  # fmt: skip


def story(wall_ns, mono_ns):
    """Rows of half an hour: one rail flaps and dies, a job moves off it and back all the time."""
    at = itertools.count(0)

    def row(kind, ms, link="", **more):
        more = {"rail": int(link[-1])} | more if link else more
        return Event(kind, wall_ns + ms * MS, mono_ns + ms * MS, link=link, **more)

    yield row(EventKind.DAEMON, 0, reason="started: fabricd 0.1.0, mode steer")
    for number in range(FLAPS):
        ms = 60_000 + 300 * number
        yield row(EventKind.FLAP, ms, "rail1", reason="carrier lost",
                  data={"down_count": number + 1, "ifindex": 7, "carrier": False})  # fmt: skip
        if number == 0:
            yield row(EventKind.LINK_STATE, ms + 1, "rail1", from_state=S.UP, to_state=S.DOWN,
                      reason=FIRST)  # fmt: skip
            yield row(EventKind.STEER, ms + 1, "rail1", to_state=S.DOWN, reason=FIRST,
                      data={"weight": 0, "before": 1000})  # fmt: skip
        for path in range(8):
            yield row(EventKind.PLUGIN, ms + 2 + path % 3, "rail1",
                      reason=("path_down", "fence_done", "first_byte")[next(at) % 3],
                      data={"job": JOB, "uid": 1001, "pid": 21786, "detail": 4,
                            "why": "peer_told"})  # fmt: skip
        for peer, down in (("a", 10), ("b", 140)):
            states = {"from_state": S.UP, "to_state": S.DOWN}
            why, address = f"{peer} not heard on this path", {"address": "10.1.0.2"}
            yield row(EventKind.PATH_STATE, ms + down, "rail1", peer=peer, **states, reason=why,
                      data=address)  # fmt: skip
            yield row(EventKind.STEER, ms + down, "rail1", peer=peer, to_state=S.DOWN, reason=why,
                      data={"weight": 0, "before": 1000, "remote": "10.1.0.2"})  # fmt: skip
        yield row(EventKind.CARRIER_UP, ms + 150, "rail1", reason="carrier back")
    yield row(EventKind.LOCATED, 66_000, "rail1",
              reason="link h/1 (NIC, cable or port of the leaf), 100 %",
              data={"part": "link", "element": "h/1", "direction": "both", "confidence": 1.0,
                    "flows": 12})  # fmt: skip
    yield row(EventKind.LINK_STATE, 400_000, "rail2", from_state=S.UP, to_state=S.DEGRADED,
              reason=LINKS["rail2"][1])  # fmt: skip
    yield row(EventKind.STEER, 400_000, "rail2", to_state=S.DEGRADED, reason=LINKS["rail2"][1],
              data={"weight": 500, "before": 1000})  # fmt: skip
    yield row(EventKind.PLUGIN, 401_000, "rail2", reason="error",
              data={"job": JOB, "uid": 1001, "pid": 21786, "detail": 6})  # fmt: skip


def pages(directory, now_ns, moved):
    """The job's page: eight rails, one of them with dead paths."""
    start = now_ns - 10**9
    # Rows of a page are by rail; what has moved grows.
    rails = [
        {"netdev": f"rail{r}", "tx_bytes": moved * (r != 1), "rx_bytes": moved, "live_paths": 3,
         "dead_paths": 3 * (r == 1), "failovers": 40 * (r == 1), "in_flight_bytes": 4096}
        for r in range(RAILS)
    ]  # fmt: skip
    header = {"heartbeat_ns": now_ns, "job": JOB.encode()}
    lay(directory, page(os.getpid(), start, rails=rails, **header), os.getpid(), start)


@contextlib.contextmanager
def faulty(tmp_path):
    """Yields the control socket of a host with `LINKS`, whose timeline has `story`."""
    whole = WholeHost(tmp_path, peer_tables("abc", RAILS), link_tables(RAILS, addressed=True))
    try:
        whole.operate("drain", "rail4", seconds=7200, reason="new optics, ticket 4711", by="uid 0")
        for netdev, (state, reason) in LINKS.items():
            health = whole.link(netdev).health
            health.state, health.reason = state, reason
            health.since_ns = time.monotonic_ns() - 3723 * 10**9
        whole.link("rail1").carrier = False
        if whole.host.evaluator._timer is not None:
            whole.host.evaluator._timer.cancel()  # It would find that nothing of it is true.
        whole.host.detectors.interfaces.missing["rail6"] = (
            "no interface of that name: there are lo, eth0, enp65s0f0np0, enp65s0f1np1, ibs1"
        )
        whole.link("rail6").health.state = S.UNKNOWN
        whole.link("rail1").health.damping.down(time.monotonic_ns(), FLAPS)
        whole.host.carriers.tracker.totals["rail1"] = FLAPS
        now = time.time_ns()
        with Timeline(tmp_path / "timeline.db", host="h") as store:
            rows = list(story(now - STORY_S * 10**9, time.monotonic_ns() - STORY_S * 10**9))
            store.append(rows)
        pages(tmp_path / "stats", time.monotonic_ns(), 5 * 10**9)

        async def reload(_by):
            return ["probe"]

        source = ConfigSource(tmp_path / "f.toml", whole.host.config)
        requests = Requests(whole.host, Services(), source, tmp_path / "timeline.db", reload)
        with served(tmp_path / "ctl.sock", requests.handlers(), LARGE) as path:
            yield path
    finally:
        whole.close()

"""Stamps and round trips where the machine's clocks are slow to read, or are slewed."""

from __future__ import annotations

from probe_pair import until

from lab.clocks.preload import preload

SLOW_NS = 2_000
"""What a reading takes at least with that library in front."""


def test_where_clocks_are_slow_to_read_there_are_round_trips_and_samples_all_the_same(pair):
    for host in pair.hosts:
        host.start(env=preload("slowclock"))
        host.configure()
    for host in pair.hosts:
        until(host.heard, "all paths heard")
    for host in pair.hosts:
        until(lambda host=host: all(row.rtt_min_ns for row in host.ring.paths()), "round trips")
        both = [s for s in host.ring.samples() if s.has_out and s.has_back]
        assert both
        # From before the wall clock was read to after it: one reading and a bit at least.
        read_ns = host.published().clock_read_ns
        assert SLOW_NS <= read_ns < 100_000
        # Both hosts' stamps are off by half of that at most, and a round trip by next to nothing.
        assert all(min(s.t2_ns - s.t1_ns, s.t4_ns - s.t3_ns) > -read_ns for s in both)
        assert all(s.t4_ns - s.t1_ns - (s.t3_ns - s.t2_ns) > 0 for s in both)
        assert "reading the clocks takes" in host.log.read_text()

"""Many communicators lose a rail of slow lines and all come back to it: a storm of reconnects."""

import signal

import pytest

from lab.cluster import wait_until
from lab.faults.catalog import Carrier
from lab.observe import stats_pages

COMMS = 256
RAILS = 4
LOST = "rail1"
PATIENCE_S = 60.0
BACK_S = 60.0
"""All comms are back on their rail. Their path validations alone, 64 KiB each, fill 100 Mbit/s for
1.4 s; a machine with nothing else to do took 4 s."""
ATTEMPTS = 3
"""Connections for each path, on average: none is found dead because the others fill the line, as
would be with all of them dialled again and again at once."""


def rails_of(perf, rank):
    _, found = stats_pages.read(perf.nodes[rank].run_dir)
    for process in found:
        if process.page.pid == perf.ranks[rank].pid:
            assert process.page.errors == 0
            return {rail.netdev: rail for rail in process.page.rails}
    return {}


def live(perf, name):
    """Paths over a rail that both ends hold for live, the fewer of them."""
    seen = [rails_of(perf, rank).get(name) for rank in (0, 1)]
    return min(rail.live_paths if rail else 0 for rail in seen)


@pytest.mark.nightly
def test_256_comms_come_back_to_a_slow_rail(cluster):
    lab = cluster(hosts=2, rails=RAILS, rate="100mbit")
    perf = lab.start_perf(
        "p2p",
        *("--channels", str(COMMS), "--size", str(COMMS << 16), "--in-flight", "8"),
        *("--duration", "600", "--wait", "block", "--verify", "full"),
    )
    try:
        perf.wait_started(PATIENCE_S)
        names = [f"rail{rail}" for rail in range(RAILS)]
        wait_until(
            lambda: all(live(perf, name) >= COMMS for name in names), PATIENCE_S, "all paths"
        )
        for _ in range(2):
            lose_and_rejoin(lab, perf)
        assert perf.running
    finally:
        for rank in perf.ranks:
            rank.send_signal(signal.SIGTERM)
        results = perf.wait(PATIENCE_S)
    for result in results:
        log = perf.log(result.rank).read_text()[-1500:]
        assert result.status == 0, log
        assert result.end["errors"] == 0, log
        assert result.end["corrupt_bytes"] == 0, log


def lose_and_rejoin(lab, perf):
    paths = live(perf, LOST)
    before = rails_of(perf, 0)[LOST].rejoins

    def carried(without):
        return sum(rail.tx_bytes for name, rail in rails_of(perf, 0).items() if name != without)

    with lab.inject(Carrier(f"h0:{LOST}")):
        wait_until(lambda: live(perf, LOST) == 0, PATIENCE_S, "the rail given up")
        sent = carried(LOST)
        wait_until(lambda: carried(LOST) > sent + 2_000_000, PATIENCE_S, "traffic on the others")
    sent = carried(LOST)
    wait_until(lambda: live(perf, LOST) >= paths, BACK_S, "every comm's path over the rail")
    # And it carries again, beside the others, which it did not starve.
    own = rails_of(perf, 0)[LOST].tx_bytes
    wait_until(
        lambda: rails_of(perf, 0)[LOST].tx_bytes > own + 5_000_000, BACK_S, "the rail's own traffic"
    )
    wait_until(lambda: carried(LOST) > sent + 5_000_000, BACK_S, "the others' traffic")
    assert rails_of(perf, 0)[LOST].rejoins - before <= ATTEMPTS * paths

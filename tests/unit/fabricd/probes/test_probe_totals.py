"""Totals of the probes: they never fall, and an outage is no loss."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whole_host import LINKS, WholeHost, link_tables, peer_tables, text

from fabricd.clock.counts import ClockCounts
from fabricd.config.loader import parse
from fabricd.probes.feed import ProberFeed
from fabricd.probes.records import PathRow, RingHeader
from fabricd.probes.totals import SETTLE_NS, SILENT, STALL_NS, ProberTotals, ProbeTotals
from fabricd.views.report import probe_totals, silent_peers, snapshot
from telemetry.link_metrics import LINK_METRICS
from telemetry.metric_table import HOST_METRICS
from telemetry.snapshot import ClockSnapshot, PtpSnapshot, TaiSnapshot

S = 10**9
NOW = 50 * S


def row(index=0, link=0, **fields):
    """A path that is well, with nothing counted yet."""
    base = {
        "address": "10.0.0.2", "port": 9200, "host_id": 7, "clock": False, "established": True,
        "interval_ns": 30_000_000, "peer_interval_ns": 30_000_000, "sent": 0, "received": 0,
        "rx_lost": 0, "tx_lost": 0, "duplicates": 0, "rx_missed": 0, "tx_missed": 0, "restarts": 0,
        "rtt_last_ns": 9000, "rtt_min_ns": 5000, "rtt_smoothed_ns": 8000, "last_heard_ns": NOW,
        "peer_incarnation": 1, "rx_bitmap": 2**64 - 1, "tx_bitmap": 2**64 - 1, "acked_ns": NOW,
        "said_ns": 0, "due_ns": 0, "awake_us": 10**6,
    }  # fmt: skip
    return PathRow(index=index, link=link, **base | fields)


class Feed:
    """Looks at one link's paths, half a second apart."""

    def __init__(self):
        self.totals = ProbeTotals()
        self.now = NOW

    def look(self, *rows, paths=(("rail0", "a"), ("rail0", "b")), life=1, out=(), stalled_ns=0):
        self.now += S // 2
        self.totals.update(life, rows, paths, set(out), self.now, stalled_ns=stalled_ns)
        return self.totals.of("rail0")


def settled():
    feed = Feed()
    for k in range(6):
        feed.look(row(sent=100 * k, received=90 * k))
    return feed


def test_losses_of_a_path_that_is_up_count_by_direction():
    feed = settled()
    found = feed.look(row(sent=600, received=500, rx_lost=3, tx_lost=5))
    assert (found.sent, found.received, found.lost_tx, found.lost_rx) == (600, 500, 5, 3)


def test_what_an_outage_swallowed_is_no_loss_then_or_later():
    feed = settled()
    feed.look(row(sent=600, received=450), out=[0])
    # The first packet after it tells of 900 that never came; the peer tells of ours a bit later.
    feed.look(row(sent=700, received=460, rx_lost=900), out=[0])
    feed.look(row(sent=800, received=560, rx_lost=900, tx_lost=850))
    found = feed.totals.of("rail0")
    assert (found.lost_tx, found.lost_rx) == (0, 0)
    for k in range(1, 6):
        found = feed.look(row(sent=800 + k, received=560 + k, rx_lost=900, tx_lost=850))
    assert (found.lost_tx, found.lost_rx) == (0, 0)
    found = feed.look(row(sent=900, received=700, rx_lost=901, tx_lost=852))
    assert (found.lost_tx, found.lost_rx) == (2, 1)


def test_a_path_that_misses_many_in_a_row_is_out_though_no_detector_says_so():
    feed = settled()
    feed.look(row(sent=600, rx_missed=SILENT))
    assert feed.look(row(sent=700, rx_lost=400)).lost_rx == 0


def test_a_gap_of_our_own_prober_loses_nothing():
    feed = settled()
    assert feed.look(row(sent=600, rx_lost=400), stalled_ns=STALL_NS).lost_rx == 0
    feed.now += SETTLE_NS
    assert feed.look(row(sent=700, rx_lost=401)).lost_rx == 1


def test_a_path_that_is_removed_keeps_its_share():
    feed = Feed()
    for k in range(6):
        found = feed.look(row(0, sent=100 * k), row(1, sent=80 * k, tx_lost=k))
    assert (found.sent, found.lost_tx) == (900, 2)
    # b has the first row now, and a is gone.
    found = feed.look(row(0, sent=480, tx_lost=6), paths=(("rail0", "b"),))
    assert (found.sent, found.lost_tx) == (980, 3)
    # a is back, in the prober's table from zero on.
    assert feed.look(row(0, sent=560), row(1, sent=3), paths=(("rail0", "b"), ("rail0", "a")))
    found = feed.look(row(0, sent=560), row(1, sent=5), paths=(("rail0", "b"), ("rail0", "a")))
    assert found.sent == 980 + 80 + 2


def test_a_prober_that_restarts_takes_nothing_back():
    feed = settled()
    assert feed.totals.of("rail0").sent == 500
    assert feed.look(row(sent=20), life=2).sent == 500
    assert feed.look(row(sent=30), life=2).sent == 510


def test_what_was_before_the_daemon_is_left_out():
    feed = Feed()
    assert feed.look(row(sent=10**6, rx_lost=10**5)).sent == 0
    assert feed.look(row(sent=10**6 + 7, rx_lost=10**5)).sent == 7
    assert feed.totals.of("rail0").lost_rx == 0


@given(st.lists(st.tuples(
    st.integers(1, 3), st.integers(0, 2000), st.integers(0, 2000), st.integers(0, 20),
    st.booleans(), st.lists(st.sampled_from("abc"), unique=True, max_size=3),
)))  # fmt: skip
def test_whatever_comes_totals_never_fall_and_outages_add_nothing(looks):
    totals, now = ProbeTotals(), NOW
    before = (0, 0, 0, 0)
    for life, sent, lost, missed, out, names in looks:
        now += S // 2
        rows = [
            row(i, sent=sent, received=sent, rx_lost=lost, tx_lost=lost, rx_missed=missed)
            for i in range(len(names))
        ]
        paths = [("rail0", name) for name in names]
        totals.update(life, rows, paths, set(range(len(names))) if out else set(), now)
        found = totals.of("rail0")
        new = (found.sent, found.received, found.lost_tx, found.lost_rx)
        assert all(a >= b for a, b in zip(new, before, strict=True))
        if out or missed >= SILENT:
            assert new[2:] == before[2:]
        before = new


def test_a_path_that_is_not_heard_has_no_round_trip():
    counted = ProbeTotals().of("rail0")

    def rtt(*rows, now=NOW):
        return probe_totals(0, rows, counted, 3, now).rtt_s

    assert rtt(row(), row(1, rtt_smoothed_ns=6000)) == pytest.approx(7e-6)
    assert rtt(row(rx_missed=3), row(1, rtt_smoothed_ns=6000)) == pytest.approx(6e-6)
    assert rtt(row(rx_missed=3), row(1, gone=True)) is None
    assert rtt(row(), now=NOW + 2 * S) is None, "nothing for two seconds, though none was due"
    assert rtt() is None
    assert probe_totals(0, [row(rx_missed=3)], counted, 3, NOW).rtt_min_s is None
    assert probe_totals(0, [], counted, 3, NOW).paths_silent is None
    assert probe_totals(0, [row(rx_missed=3), row(1)], counted, 3, NOW).paths_silent == 1


def test_a_peer_is_silent_when_nothing_of_it_is_heard_on_any_rail():
    def path(peer, *, ever=True, gone=False):
        return SimpleNamespace(spec=SimpleNamespace(peer=peer), heard_ever=ever, gone=gone)

    paths = [path("a"), path("a"), path("b"), path("c", ever=False), path("d", gone=True)]
    dead = {"rx_missed": 40, "last_heard_ns": NOW - 5 * S}
    rows = [row(0, **dead), row(1), row(2, **dead), row(3, last_heard_ns=0), row(4, **dead)]
    assert silent_peers(paths, rows, 3, NOW) == {"a": False, "b": True, "c": False, "d": False}
    rows[1] = row(1, **dead)
    assert silent_peers(paths, rows, 3, NOW)["a"] is True
    # A prober that restarted has heard nobody, and that is no news of a peer that is dead.
    assert silent_peers(paths, [row(2, last_heard_ns=0)], 3, NOW) == {"b": True}
    assert silent_peers(paths, [], 3, NOW) == {}


def header(life=1, start_ns=NOW + 1, stalls=0, refused=(0,) * 7):
    return RingHeader(
        1, 1, life, start_ns, NOW, True, 1, 2, 2, 10**7, 3, 0, True, True, 0, 0, 0, 0,
        stalls, stalls * 10**6, 0, 0, refused, False, stalls,
    )  # fmt: skip


def test_what_the_prober_says_of_itself_outlives_it():
    totals = ProberTotals(NOW)
    totals.update(header(stalls=5, refused=(1, 0, 0, 9, 0, 0, 0)))
    totals.update(None)
    assert (totals.stalls, totals.refused["auth"]) == (5, 9)
    totals.update(header(life=2, stalls=2, refused=(0, 0, 0, 1, 0, 0, 0)))
    assert (totals.stalls, totals.stall_ns, totals.due_times_refused) == (7, 7 * 10**6, 7)
    assert (totals.refused["auth"], totals.refused["short"]) == (10, 1)


def test_what_an_older_prober_refused_before_the_daemon_began_is_no_news():
    totals = ProberTotals(NOW)
    totals.update(header(start_ns=NOW - S, refused=(0, 0, 0, 50_000, 0, 0, 0)))
    assert totals.refused["auth"] == 0
    totals.update(header(start_ns=NOW - S, refused=(0, 0, 0, 50_002, 0, 0, 0)))
    assert totals.refused["auth"] == 2


def test_counters_of_a_clock_service_that_restarts():
    def shot(lost, steps=0, changes=0, **more):
        ptp = PtpSnapshot(changes=changes)
        tai = TaiSnapshot(steps=steps)
        return ClockSnapshot(True, 1, references_lost=lost, tai=tai, ptp=ptp, **more)

    counts = ClockCounts()
    counts.update(shot(5, 2, 3))
    gone = counts.update(ClockSnapshot())
    assert (gone.references_lost, gone.tai.steps, gone.ptp, gone.up) == (5, 2, None, False)
    new = counts.update(shot(0))
    assert (new.references_lost, new.tai.steps, new.ptp.changes) == (5, 2, 3)
    new = counts.update(shot(1, 1, 1))
    assert (new.references_lost, new.tai.steps, new.ptp.changes) == (6, 3, 4)


PEERS, ADDRESSED = peer_tables(), link_tables(addressed=True)


def counters(shot):
    """(Metric, labels) → value, of all counters of the endpoint."""
    found = {}
    for spec in [*LINK_METRICS, *HOST_METRICS]:
        if spec.kind != "counter":
            continue
        of = shot.links if spec in LINK_METRICS else [shot]
        for each in of:
            value = spec.value(each)
            parts = value if isinstance(value, dict) else {"": value}
            for label, number in parts.items():
                if number is not None:
                    found[spec.name, getattr(each, "netdev", ""), label] = number
    return found


class Prober(ProberFeed):
    """A table of paths and a header, once it has the engine of the host."""

    refused = 3
    start_ns = 2**62

    def __init__(self, run_dir):
        super().__init__(run_dir)
        self.engine, self.life, self.at = None, 1, {}

    def header(self):
        if self.engine is None:
            return None
        return header(self.life, self.start_ns, 4, (0, 0, 0, self.at.get("auth", 9), 0, 0, 0))

    def paths(self):
        out = []
        for path in self.engine.paths:
            n = self.at[path.key] = self.at.get(path.key, 0) + 100
            out.append(row(path.index, path.spec.link, sent=n, received=n, rx_lost=n // 10))
        return out

    def all_paths(self):
        return None if self.engine is None else (self.paths(), [])


async def test_no_counter_falls_over_reloads_and_restarts(tmp_path):
    """The whole kind: whatever begins anew elsewhere, the endpoint's counters only grow."""
    whole = WholeHost(tmp_path, PEERS, ADDRESSED, feed=Prober)
    host = whole.host
    try:
        prober = host.prober.feed
        prober.engine = host.engine
        host.nics.nics["rail0"].totals["hard"] = 3
        host.carriers.tracker.totals["rail1"] = 2
        host.jobs.totals._totals["rail0"]["tx_bytes"] = 10**6
        host.jobs.totals.refused = 4
        seen = {}

        def check():
            for _ in range(3):
                host.prober.tables.forget()
                host.probe_tick.feed_loss()
            host.prober.tables.forget()
            now = counters(snapshot(host))
            fell = {k: (seen[k], now[k]) for k in seen.keys() & now.keys() if now[k] < seen[k]}
            assert not fell
            seen.update(now)
            return now

        def reload(peers, links=ADDRESSED):
            host.reconfigure(parse(text(tmp_path, peers, links), "f"))

        check()
        assert seen["fabricd_link_probe_packets_sent_total", "rail0", ""] > 0
        one = PEERS.partition('[[peers]]\nhost = "b"')[0]
        reload(one)
        check()
        reload(PEERS)
        check()
        reload(PEERS, LINKS.replace("rail0", "other").replace("rail = 0", "rail = 7"))
        check()
        reload(PEERS)
        now = check()
        assert now["fabricd_link_errors_total", "rail0", "hard"] == 3
        assert now["fabricd_link_plugin_transmit_bytes_total", "rail0", ""] == 10**6
        prober.life, prober.at = 2, {"auth": 1}
        check()
        prober.header = lambda: None
        check()
        del prober.header
        check()
    finally:
        whole.close()


async def test_what_an_older_prober_refuses_before_the_first_tick_counts(tmp_path):
    whole = WholeHost(tmp_path, PEERS, ADDRESSED, feed=Prober)
    host, prober = whole.host, whole.host.prober.feed
    try:
        prober.engine, prober.start_ns, prober.at = host.engine, 0, {"auth": 50}
        host.probe_loop.prober_changed("appeared", {"pid": 1, "incarnation": 1})
        prober.at["auth"] = 52
        assert snapshot(host).prober.refused["auth"] == 2
    finally:
        whole.close()

"""Whose fault is it? Scenarios of a host with several rails and peers, in virtual time."""

from dataclasses import dataclass, field

import pytest

from fabricd.detect.silence import PathView, Rules
from fabricd.detect.verdict import FailureDetector, Verdict, healthy, live_peers

pytestmark = pytest.mark.virtual_time

MS = 10**6
RULES = Rules(misses=3, link_interval_ns=10 * MS)
AGES = 10**15


def seen(index, link, peer, last, *, missed=(0, 0), interval=30 * MS, awake=AGES, **more):
    """A path whose newest packet came when it was due, of peers whose clocks are 7 s ahead."""
    said = last + 7000 * MS
    return PathView(
        index, link, peer, True, *missed, interval, last, said_ns=said, next_ns=said + interval,
        awake_ns=awake, **more,
    )  # fmt: skip


@dataclass
class Sim:
    """Probes of one host: paths (link, peer), each with an interval, packets lost by a function.

    ``lost(link, peer, direction, t)`` says whether a packet is lost. Misses are judged as the
    prober does: after an interval and the lateness that is allowed, then once per interval.
    """

    rails: int = 4
    peers: tuple[str, ...] = ("a", "b", "c")
    interval: int = 30 * MS
    lost: object = None
    stops: dict = field(default_factory=dict)
    """Peer → (from, until): its prober did not run."""

    def run(self, until: int, start: int = 0) -> list[tuple[int, Verdict]]:
        detector = FailureDetector(RULES)
        paths = [(r, p) for r in range(self.rails) for p in self.peers]
        heard = {k: {"rx": 0, "tx": 0} for k in paths}
        acked = dict.fromkeys(paths, 0)
        late = RULES.lateness(self.interval)
        out = []
        last = None
        phases = [
            (i % len(self.peers)) * self.interval // len(self.peers) for i in range(len(paths))
        ]
        told = [None] * len(paths)
        views = [None] * len(paths)
        for now in range(MS, until, MS):
            for (rail, peer), phase in zip(paths, phases, strict=True):
                if (now - phase) % self.interval == 0:
                    for direction in ("rx", "tx"):
                        silent = self.lost and self.lost(rail, peer, direction, now)
                        begin, end = self.stops.get(peer, (0, 0))
                        silent = silent or (direction == "rx" and begin <= now < end)
                        if not silent and direction == "rx":
                            acked[rail, peer] = heard[rail, peer]["tx"]  # packets cross
                        if not silent:
                            heard[rail, peer][direction] = now
            for i, (rail, peer) in enumerate(paths):
                last_rx, last_tx = heard[rail, peer].values()
                rx = max(0, (now - last_rx - late) // self.interval)
                # Without packets from there no report can come.
                tx = 0 if rx else max(0, (now - last_tx - late) // self.interval)
                facts = last_rx, rx, tx, acked[rail, peer]
                if facts == told[i]:
                    continue
                told[i] = facts
                _, woke = self.stops.get(peer, (0, 0))
                views[i] = seen(
                    i, rail, peer, last_rx, missed=(rx, tx), interval=self.interval,
                    acked_ns=acked[rail, peer], awake=last_rx - woke if last_rx >= woke else AGES,
                )  # fmt: skip
            verdict = detector.judge(views, now)
            if verdict != last:
                out.append((now, verdict))
                last = verdict
        return out


def faults(history):
    """link → first time, path → first time, hosts ever silent."""
    links, paths, hosts = {}, {}, set()
    for now, verdict in history:
        for link in verdict.link_faults:
            links.setdefault(link, now)
        for path in verdict.path_faults:
            paths.setdefault(path, now)
        hosts |= verdict.silent_hosts
    return links, paths, hosts


T0 = 1000 * MS


@pytest.mark.parametrize("direction", ["rx", "tx", "both"])
def test_black_hole_of_my_link(direction):
    def lost(rail, _peer, d, t):
        return rail == 1 and t >= T0 and d in (direction, "rx" if direction == "both" else "")

    links, paths, hosts = faults(Sim(lost=lost).run(2000 * MS))
    assert set(links) == {1}
    assert links[1] - T0 <= 110 * MS, "about misses x link interval after the first judgement"
    assert not paths
    assert not hosts


def test_one_peer_nic_is_that_path_only():
    def lost(rail, peer, d, t):
        return rail == 1 and peer == "b" and t >= T0

    links, paths, _ = faults(Sim(lost=lost).run(2000 * MS))
    assert not links
    assert set(paths) == {1 * 3 + 1}
    assert paths[4] - T0 <= 150 * MS


def test_peer_that_does_not_hear_us_is_that_path_only():
    def lost(rail, peer, d, t):
        return rail == 1 and peer == "b" and d == "tx" and t >= T0

    links, paths, _ = faults(Sim(lost=lost).run(2000 * MS))
    assert not links
    assert set(paths) == {4}


def test_two_of_three_peers_on_one_rail_do_not_blame_my_link():
    def lost(rail, peer, d, t):
        return rail == 1 and peer in "ab" and t >= T0

    links, paths, _ = faults(Sim(lost=lost).run(2000 * MS))
    assert not links
    assert set(paths) == {3, 4}


def test_a_dead_host_is_no_link_fault():
    def lost(rail, peer, d, t):
        return peer == "b" and t >= T0

    links, paths, hosts = faults(Sim(lost=lost).run(3000 * MS))
    assert not links
    assert not paths
    assert hosts == {"b"}


def test_all_hosts_dead_is_no_link_fault():
    links, paths, hosts = faults(Sim(lost=lambda r, p, d, t: t >= T0).run(3000 * MS))
    assert not links
    assert not paths
    assert hosts == {"a", "b", "c"}


def test_two_rails_at_once():
    def lost(rail, peer, d, t):
        return rail in (0, 3) and t >= T0

    links, paths, _ = faults(Sim(lost=lost).run(2000 * MS))
    assert set(links) == {0, 3}
    assert not paths


@pytest.mark.parametrize("length", [60, 100, 130, 170, 400])
@pytest.mark.parametrize("who", ["a", "abc"])
def test_stopped_peers_that_go_on_accuse_nobody(length, who):
    """Their paths come back one after the other, and none may look dead in between."""

    def lost(rail, peer, d, t):
        return peer in who and T0 <= t < T0 + length * MS + rail * 3 * MS

    stops = dict.fromkeys(who, (T0, T0 + length * MS))
    links, paths, _ = faults(Sim(lost=lost, stops=stops).run(3000 * MS))
    assert not links
    assert not paths


def test_my_own_prober_that_did_not_send_accuses_nobody():
    def lost(rail, peer, d, t):
        return d == "tx" and T0 <= t < T0 + 200 * MS + rail * 3 * MS

    links, paths, _ = faults(Sim(lost=lost).run(3000 * MS))
    assert not links
    assert not paths


def test_single_peer_can_only_lose_its_path():
    def lost(rail, peer, d, t):
        return rail == 0 and t >= T0

    links, paths, _ = faults(Sim(rails=2, peers=("a",), lost=lost).run(2000 * MS))
    assert not links
    assert set(paths) == {0}


def test_single_rail_has_no_witness():
    links, paths, hosts = faults(Sim(rails=1, lost=lambda r, p, d, t: t >= T0).run(2000 * MS))
    assert not links
    assert not paths
    assert hosts == {"a", "b", "c"}


def test_ten_peers_are_judged_within_the_bound():
    peers = tuple("abcdefghij")
    sim = Sim(peers=peers, interval=100 * MS, lost=lambda r, p, d, t: r == 2 and t >= T0)
    links, paths, _ = faults(sim.run(2000 * MS))
    assert set(links) == {2}
    assert links[2] - T0 <= 250 * MS
    assert not paths


@pytest.mark.parametrize("direction", ["rx", "tx"])
@pytest.mark.parametrize("phase", range(0, 100, 13))
def test_three_packets_due_on_the_link_are_enough_whatever_the_number_of_peers(direction, phase):
    def lost(rail, _peer, d, t):
        return rail == 2 and d == direction and t >= T0 + phase * MS

    sim = Sim(peers=tuple("abcdefghij"), interval=100 * MS, lost=lost)
    links, paths, _ = faults(sim.run(1600 * MS))
    assert set(links) == {2}
    # Three link intervals, what a packet may be late, and for TX a witness and the next report.
    assert links[2] - T0 - phase * MS <= (45 if direction == "rx" else 65) * MS
    assert not paths


def test_two_peers_that_stop_while_they_send_accuse_nobody():
    """Both send on rail 0, and are stopped before rail 1; all three stand still; then all go on."""
    slots = {p: T0 + (i * 10 - 10) % 30 * MS for i, p in enumerate("abc")}

    def lost(rail, peer, d, t):
        return d == "rx" and rail == 1 and peer in "ab" and t == slots[peer]

    stops = {peer: (slot + MS, T0 + 400 * MS) for peer, slot in slots.items()}
    links, paths, _ = faults(Sim(rails=2, lost=lost, stops=stops).run(2000 * MS))
    assert not links
    assert not paths


def test_random_loss_of_ten_percent_accuses_nobody():
    def lost(rail, peer, d, t):
        x = (t // MS * 2654435761 + rail * 97 + ord(peer) * 13 + (d == "rx") * 31) & 0xFFFFFFFF
        return ((x ^ (x >> 15)) * 2246822519 >> 7) % 10 == 0

    links, _, _ = faults(Sim(lost=lost).run(10_000 * MS))
    assert not links


@pytest.mark.parametrize("speaks", [False, True])
def test_a_peer_that_runs_now_and_then_accuses_a_path_only_of_what_it_sent(speaks):
    """Awake for 20 ms in 100, for a while: its packets of one rail may be missing each time."""
    detector, interval, found = FailureDetector(RULES), 30 * MS, {}
    last = dict.fromkeys(range(4), T0)
    awake = dict.fromkeys(range(4), AGES)
    for now in range(T0, T0 + 1200 * MS, 10 * MS):
        into = (now - T0) % (100 * MS)
        for rail in range(1, 4):
            if into < 20 * MS:
                # Rail 0's slot is 10 ms before that of the others, or 10 ms after.
                last, awake = last | {rail: now}, awake | {rail: into}
        missed = {r: max(0, (now - last[r] - interval // 2) // interval) for r in range(4)}
        views = [
            seen(r, r, "b", last[r], missed=(missed[r], 0), interval=interval, awake=awake[r])
            for r in range(4)
        ]
        if speaks:  # its slot falls into the time for which the peer runs, each third time
            views[0] = views[0]._replace(next_ns=views[0].said_ns + 10 * MS)
        else:
            views[0] = views[0]._replace(next_ns=views[0].said_ns + 25 * MS, interval_ns=100 * MS)
        found |= detector.judge(views, now).path_faults
    assert bool(found) is speaks


def test_a_path_that_is_silent_while_its_peer_runs_is_told():
    detector, interval = FailureDetector(RULES), 30 * MS
    for now in range(T0, T0 + 400 * MS, 10 * MS):
        lived = now - (now - T0) % interval
        missed = max(0, (now - T0 - interval // 2) // interval)
        views = [seen(0, 0, "b", T0, missed=(missed, 0), interval=interval)]
        views += [seen(r, r, "b", lived, interval=interval) for r in (1, 2, 3)]
        if detector.judge(views, now).path_faults:
            break
    assert 100 * MS <= now - T0 <= 250 * MS


def test_unheard_paths_are_no_evidence():
    views = [seen(i, 0, p, 0, missed=(9, 0))._replace(heard=False) for i, p in enumerate("abc")]
    assert FailureDetector(RULES).judge(views, T0) == Verdict()


def view(index, link, peer, *, clean=True, heard=True):
    return seen(index, link, peer, T0, missed=(0 if clean else 3, 0))._replace(heard=heard)


def test_healthy_needs_half_of_the_known_paths_to_living_peers():
    alive = frozenset("ab")
    paths = [view(0, 0, "a"), view(1, 0, "b", clean=False), view(2, 0, "c", clean=False)]
    assert healthy(paths, [0, 1, 2], alive), "c is dead: a of a and b is half"
    paths[0] = view(0, 0, "a", clean=False)
    assert not healthy(paths, [0, 1, 2], alive)
    assert healthy(paths, [], alive), "nobody was ever heard: no evidence"
    unheard = [view(0, 0, "a", heard=False), view(1, 0, "b", heard=False)]
    assert not healthy(unheard, [0, 1], alive), "a restarted prober has heard nobody yet"


def test_a_single_miss_does_not_keep_a_path_away():
    base = view(0, 0, "a")
    assert base.sound
    assert base._replace(rx_missed=1, tx_missed=1).sound
    assert not base._replace(rx_missed=2).sound
    assert not base._replace(tx_missed=2).sound
    assert not base._replace(heard=False).sound


def test_live_peers_are_those_of_other_links():
    paths = [view(0, 0, "a"), view(1, 1, "b"), view(2, 1, "c", clean=False)]
    assert live_peers(paths, 0) == {"b"}
    assert live_peers(paths, 1) == {"a"}


def test_a_silence_that_ended_counts_for_nothing_in_the_next():
    """A single packet of a peer is lost; ten seconds later the peer stands still."""
    detector, interval, paths = FailureDetector(RULES), 100 * MS, 3
    lost_at, stops_at = 1000, 11_060  # ms; path 0 is heard at 0, 100, …, the others 50 later

    def view(index, now):
        heard = [t for t in range(50 * (index > 0), now + 1, 100) if t < stops_at]
        if index == 0 and now >= lost_at:
            # The packet at 1000 and, before the peer stops, the one at 11,000.
            heard = [t for t in heard if t not in (lost_at, 11_000)]
        missed = max(0, (now - heard[-1] - 15) // 100)
        return seen(index, index, "a", heard[-1] * MS, missed=(missed, 0), interval=interval)

    found = set()
    for now in range(100, 11_330, 10):
        views = [view(index, now) for index in range(paths)]
        found |= {(views[0].rx_missed, *detector.judge(views, now * MS).path_faults)}
    assert max(missed for missed, *_ in found) >= 3
    assert not {faulty for _, *blamed in found for faulty in blamed}


def rails_of(peers, first, others, *, missed, interval=40 * MS):
    """Four rails with a path to each peer; rail 0 was heard at ``first``, and misses."""
    return [
        seen(4 * i + r, r, peer, others if r else first, missed=(0 if r else missed, 0),
             interval=interval)
        for i, peer in enumerate(peers)
        for r in range(4)
    ]  # fmt: skip


@pytest.mark.parametrize("fresh", [False, True])
def test_packets_of_before_a_pause_vouch_for_nothing_after_it(fresh):
    """All machines of a hypervisor stood still; the backlog of one is delivered half a second late.

    With stamps of when they were taken up again, these packets look as if they had been sent now.
    """
    detector, interval, found = FailureDetector(RULES), 40 * MS, {}
    for now in range(T0, T0 + 200 * MS, 2 * MS):
        # Four peers, a slot each in 40 ms: none has sent since; we have been running since T0.
        missed = max(0, (now - T0 - 7 * MS) // interval)
        views = rails_of("abcd", T0 - 500 * MS, T0 - 500 * MS, missed=missed)
        views = [
            v._replace(
                last_heard_ns=now - 5 * MS,
                said_ns=v.said_ns + (now - T0 + 500 * MS if fresh else 0),
                next_ns=v.next_ns + (now - T0 + 500 * MS if fresh else 0),
            )
            if v.link else v
            for v in views
        ]  # fmt: skip
        found |= detector.judge(views, now).link_faults
    assert bool(found) is fresh, "said to have been sent now: then the link is silent"


@pytest.mark.parametrize("again", [False, True])
def test_another_life_of_a_peer_vouches_by_when_it_was_heard(again):
    """Booted anew its clock is another; then our arrivals are all there is to go by."""
    detector, interval, found = FailureDetector(RULES), 40 * MS, {}
    for now in range(T0, T0 + 120 * MS, 2 * MS):
        missed = max(0, (now - T0 - 7 * MS) // interval)
        lived = now - (now - T0) % interval
        views = rails_of("abcd", T0, lived, missed=missed)
        if again:
            views = [v._replace(said_ns=v.said_ns - 6 * 10**12, next_ns=0, life=2) if v.link else v
                     for v in views]  # fmt: skip
        found |= detector.judge(views, now).link_faults
    assert set(found) == {0}


@pytest.mark.parametrize("lives", [False, True])
@pytest.mark.parametrize("after_us", [2000, 700, 400])
def test_peers_that_stop_together_accuse_no_link(after_us, lives):
    """A virtual machine's pause, so long before a slot: what they sent last vouches for nothing."""
    detector = FailureDetector(Rules(misses=3, link_interval_ns=4 * MS))
    interval, sent = 8 * MS, T0 + 16 * MS  # the last slot of the paths of the rails themselves
    found = {}
    for now in range(sent, sent + 40 * MS, MS // 2):
        since = sent + (now - sent) // interval * interval if lives else sent
        views = [
            seen(i, i // 2, "ab"[i % 2], since if i >= 4 else sent, interval=interval)
            for i in range(8)
        ]
        # Three extra paths on link 0, due a little after that; the last that came were before it.
        heard, due = sent - 6 * MS, sent + after_us * 1000
        missed = max(0, (now - due - 2 * MS) // interval + 1) if now >= due + 2 * MS else 0
        for i, peer in enumerate("aab"):
            extra = seen(8 + i, 0, peer, heard, missed=(missed, 0), interval=interval)
            views.append(extra._replace(next_ns=extra.said_ns + due - heard))
        found |= detector.judge(views, now).link_faults
    assert bool(found) is lives


@pytest.mark.parametrize("ppm", [-20, 0, 1, 20])
def test_a_peer_that_is_late_at_each_slot_still_vouches_for_that_slot(ppm):
    """Awake for no time before any of its slots, and its grid is not quite its clock's."""
    detector, interval, dead = FailureDetector(RULES), 30 * MS, T0 + 5 * MS
    found = {}
    for now in range(T0, T0 + 600 * MS, MS):
        views = []
        for i, peer in enumerate("abc"):
            begin = T0 - 300 * MS + i * 10 * MS
            for rail in range(3):
                count = (now - 7 * MS - begin) // interval  # each is sent 7 ms late
                if rail == 0:
                    count = min(count, (dead - 7 * MS - begin) // interval)
                due = begin + count * interval
                said = due + due * ppm // 10**6
                missed = max(0, (now - due - 14 * MS) // interval)
                view = seen(3 * i + rail, rail, peer, due + 7 * MS, missed=(missed, 0), awake=0)
                views.append(view._replace(said_ns=said, next_ns=said + interval))
        found |= detector.judge(views, now).link_faults
    assert set(found) == {0}


def test_a_link_is_down_as_soon_as_the_prober_misses_the_third_packet():
    """It calls misses sooner where it knows when packets were due, and is believed then."""
    interval, dead, delay, told = 30 * MS, T0 + 5 * MS, 50_000, {}
    for late in (RULES.lateness(interval), 2_600_000):
        detector = FailureDetector(RULES)
        for now in range(T0, T0 + 60 * MS, MS // 10):
            views = []
            for i, peer in enumerate("abc"):
                for rail in range(2):
                    begin = T0 - 300 * MS + i * 10 * MS
                    count = (now - delay - begin) // interval
                    if rail == 0:
                        count = min(count, (dead - begin) // interval)
                    heard = begin + count * interval + delay
                    overdue = now - heard - interval - late
                    missed = max(0, overdue // interval + 1) if overdue >= 0 else 0
                    view = seen(2 * i + rail, rail, peer, heard, missed=(missed, 0))
                    views.append(view._replace(late_ns=late if late < 5 * MS else 0))
            if detector.judge(views, now).link_faults:
                told[late] = now
                break
    slow, soon = told[RULES.lateness(interval)], told[2_600_000]
    # The third packet after `dead` is due at T0 + 30 ms.
    assert soon - (T0 + 30 * MS) == pytest.approx(2_600_000 + delay, abs=MS // 10)
    assert slow - soon == pytest.approx(RULES.lateness(interval) - 2_600_000, abs=MS // 5)

"""Real probers, real packets: two namespaces, two rails, faults made by the test.

Judged by what the records say of each other, not by this process's clock: a machine that stops us
or a prober for a while makes the tests slower, not wrong. The exact times are in prober/tests.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import statistics
import time
from collections import Counter
from dataclasses import replace

import pytest
from probe_pair import (
    INTERVAL_NS,
    PATIENCE_S,
    PORT,
    RAILS,
    Host,
    accused,
    conclusive,
    misses,
    until,
)
from pyroute2 import NetNS

from fabricd.probes.client import (
    ProbeConfig,
    ProbeLink,
    ProberClient,
    ProberError,
    ProberGoneError,
)
from fabricd.probes.records import (
    CarrierRecord,
    CarrierSource,
    Direction,
    HeardRecord,
    MissRecord,
    PeerRestartRecord,
    StallRecord,
)

# The loop wakes every 2 ms; twice it may be 5 ms late before it calls that a gap.
LATE_NS = 12_000_000


def test_paths_become_heard_and_rtt_is_plausible(probing):
    for host in probing.hosts:
        # From then on there are stamps: what turns them into the raw clock has settled.
        until(lambda host=host: all(r.rtt_min_ns for r in host.ring.paths()), "round trips")
    begin = [host.published() for host in probing.hosts]
    for host in probing.hosts:
        host.hears(100)
    for host, first in zip(probing.hosts, begin, strict=True):
        assert {e.path for e in host.events(HeardRecord) if e.first} == {0, 1}
        for row in host.ring.paths():
            assert row.address == host.address(row.index, host.other)
            assert row.interval_ns == row.peer_interval_ns == INTERVAL_NS
            assert 0 < row.rtt_min_ns <= row.rtt_smoothed_ns, (
                f"clocks are read in {host.ring.header().clock_read_ns} ns; samples: "
                f"{Counter((s.path, s.has_out, s.has_back) for s in host.ring.samples())}"
            )
            assert row.rx_lost == row.tx_lost == 0
            assert row.rx_bitmap.bit_count() == 64
        for link in host.ring.links():
            assert (link.present, link.bound, link.carrier) == (True, True, True)
            assert link.source is CarrierSource.SYSFS
        # One kernel clock on both sides: each way takes between nothing and the round trip.
        both = [s for s in host.ring.samples() if s.has_out and s.has_back]
        assert len(both) > 100
        assert all(s.t2_ns >= s.t1_ns and s.t4_ns >= s.t3_ns for s in both)
        for row in host.ring.paths():
            mine = [s for s in both if s.path == row.index]
            there_and_back = [(s.t4_ns - s.t3_ns) + (s.t2_ns - s.t1_ns) for s in mine]
            assert row.rtt_min_ns <= statistics.median(there_and_back) < INTERVAL_NS
        # 100 packets a second and path while it runs; a packet more for a report.
        last = host.published()
        assert last.realtime
        elapsed = last.heartbeat_ns - first.heartbeat_ns
        sent = last.sent - first.sent
        reports = len(misses(host, Direction.RX))
        assert sent <= 2 * (1.07 * elapsed / INTERVAL_NS + 3) + reports
        stalled = last.stall_ns - first.stall_ns
        stalls = last.stalls - first.stalls
        assert sent >= 2 * (0.93 * (elapsed - stalled) / INTERVAL_NS - 6 - 2 * stalls)
    a, b = probing.hosts
    assert accused(a, b, Direction.RX) == accused(b, a, Direction.RX) == set()


def test_trains_on_a_clock_path(pair):
    for host in pair.hosts:
        host.start()
        config = host.config(clock_train_hz=50)
        paths = [replace(p, clock=p.index == 1) for p in config.paths]
        host.configure(replace(config, paths=paths, link_interval_us=50_000))
    for host in pair.hosts:
        until(host.heard, "all paths heard")
    a, b = pair.hosts
    a.ring.samples(limit=100_000)
    a.hears(180, (1,))
    samples = [s for s in a.ring.samples(limit=100_000) if s.has_out]
    on_clock = [s for s in samples if s.path == 1]
    by_position = {n: sum(s.out_train == n for s in on_clock) for n in range(4)}
    span = on_clock[-1].mono_ns - on_clock[0].mono_ns
    gaps = sum(h.gap_ns(on_clock[0].mono_ns, on_clock[-1].mono_ns) for h in (a, b))
    # Trains 50 times a second, beside the single packets of every 50 ms.
    for position, rate in ((0, 20), (1, 50), (2, 50), (3, 50)):
        most, least = rate * span / 1e9, rate * (span - gaps) / 1e9
        assert 0.7 * least - 4 <= by_position[position] <= 1.1 * most + 4, by_position
    assert sum(by_position.values()) > 100
    assert {s.out_train for s in samples if s.path == 0} == {0}


@pytest.mark.parametrize("period_ms", [2, 20])
def test_flaps_are_counted_exactly(probing, period_ms):
    a = probing.a
    before = a.ring.links()[0]
    assert before.carrier
    probing.flap(0, 100, period_ms / 1000)
    until(lambda: a.ring.links()[0].downs == before.downs + 100, "100 downs")
    until(lambda: a.ring.links()[0].carrier, "carrier")
    after = a.ring.links()[0]
    assert after.carrier_down_count - before.carrier_down_count == 100
    carrier = [e for e in a.events(CarrierRecord) if e.link == 0]
    assert sum(e.downs for e in carrier) == 100
    assert carrier[-1].carrier
    assert carrier[-1].down_count == after.carrier_down_count
    for e in carrier:
        if not e.initial:  # read every 2 ms: not one sum at the end
            looked_away = e.mono_ns - e.since_ns - a.gap_ns(e.since_ns, e.mono_ns)
            assert looked_away < LATE_NS
    assert sum(e.downs for e in a.events(CarrierRecord) if e.link == 1) == 0


def test_carrier_by_rtnetlink_where_sysfs_is_another_namespaces(pair):
    pair.a.start(sysfs=False)
    pair.a.configure()
    until(lambda: len(pair.a.ring.links()) == 2, "links")
    until(lambda: all(link.carrier for link in pair.a.ring.links()), "carrier")
    assert {link.source for link in pair.a.ring.links()} == {CarrierSource.NETLINK}
    assert "/sys does not show this network namespace" in pair.a.log.read_text()
    pair.flap(0, 100, 0.002)
    until(lambda: sum(e.downs for e in pair.a.events(CarrierRecord)) >= 100, "100 downs")
    pair.a.published()
    assert sum(e.downs for e in pair.a.events(CarrierRecord)) == 100


@pytest.mark.parametrize("sysfs", [True, False])
def test_a_device_that_is_administratively_down_has_no_carrier(pair, sysfs):
    """Some drivers keep it, and rtnetlink shows it; sysfs shows none."""

    def idle(**changes):
        with NetNS(pair.a.name) as ipr:
            (index,) = ipr.link_lookup(ifname="idle0")
            ipr.link("set", index=index, **changes)
            (message,) = ipr.get_links(index)
            return bool(message.get_attr("IFLA_CARRIER"))

    with NetNS(pair.a.name) as ipr:
        ipr.link("add", ifname="idle0", kind="ifb")
    pair.a.start(sysfs=sysfs)
    pair.a.configure(ProbeConfig(1, [ProbeLink(0, "idle0", "0.0.0.0", PORT)], []))
    link = pair.a.ring.links
    until(lambda: link() and link()[0].present, "the device")
    assert link()[0].source is (CarrierSource.SYSFS if sysfs else CarrierSource.NETLINK)
    assert (idle(state="down"), link()[0].carrier) == (True, False)
    idle(state="up")
    until(lambda: link()[0].carrier, "the carrier")
    idle(state="down")
    until(lambda: not link()[0].carrier, "no carrier")


def test_black_hole_one_way(probing):
    a, b = probing.hosts
    for host in probing.hosts:
        host.hears(20)
    cut = time.monotonic_ns()
    b.nft("table inet hole { chain in { type filter hook prerouting priority -300;"
          f' iifname "{RAILS[0]}" udp dport {PORT} drop; }}; }}\n')  # fmt: skip
    installed = time.monotonic_ns()

    def rx() -> list[MissRecord]:
        """The receiver's misses of the silence that goes on."""
        since = b.ring.paths()[0].last_heard_ns
        records = conclusive(misses(b, Direction.RX, cut))
        return [m for m in records if m.path == 0 and m.last_heard_ns == since]

    def tx() -> list[MissRecord]:
        found = conclusive(misses(a, Direction.TX, cut))
        return [m for m in found if m.path == 0]

    until(lambda: [m for m in rx() if m.count >= 10], "ten misses at the receiver")
    seen = rx()
    # Heard until the hole was there, then a miss after 1.5 intervals and after each further one.
    assert seen[0].last_heard_ns <= installed
    before = seen[0].count - 1
    for m in seen:
        awake = m.silent_ns - b.gap_ns(m.last_heard_ns, m.mono_ns)
        due = m.count * INTERVAL_NS + INTERVAL_NS // 2
        assert m.interval_ns == INTERVAL_NS
        assert due <= awake < due + INTERVAL_NS
        if m.count != before + 1:  # not one sum at the end
            assert b.gap_ns(m.mono_ns - 3 * INTERVAL_NS, m.mono_ns) > 0
        before = m.count
    third = next(m for m in seen if m.count >= 3)

    until(lambda: [m for m in tx() if m.count >= 3], "evidence at the sender")
    told = next(m for m in tx() if m.count >= 3)
    assert told.mono_ns > third.mono_ns
    assert told.silent_ns >= 7 * INTERVAL_NS // 2  # as the receiver says
    # With the next packets, which come even if the report were lost.
    delay = told.mono_ns - third.mono_ns
    held_up = a.gap_ns(third.mono_ns, told.mono_ns) + b.gap_ns(third.mono_ns, told.mono_ns)
    assert delay - held_up < 10 * INTERVAL_NS
    assert accused(b, a, Direction.RX, cut) == accused(a, b, Direction.TX, cut) == {0}
    assert accused(a, b, Direction.RX, cut) == accused(b, a, Direction.TX, cut) == set()
    assert b.ring.links()[0].carrier
    missed = b.ring.paths()[0].rx_missed
    assert missed >= 10

    b.nft("delete table inet hole")
    until(lambda: not b.ring.paths()[0].rx_missed, "heard again")
    until(lambda: not a.ring.paths()[0].tx_missed, "heard again, as the peer says")

    def ended(host: Host, direction: Direction, count: int) -> list[int]:
        found = [e for e in host.events(HeardRecord) if e.direction is direction]
        return [e.path for e in found if e.mono_ns > installed and e.count >= count]

    until(lambda: ended(b, Direction.RX, missed) == [0], "the end of it at the receiver")
    until(lambda: ended(a, Direction.TX, 3) == [0], "the end of it at the sender")
    until(lambda: b.ring.paths()[0].rx_lost >= missed, "all that was lost is counted")
    until(lambda: a.ring.paths()[0].tx_lost == b.ring.paths()[0].rx_lost, "and known here")
    assert a.ring.paths()[0].rx_lost == 0


def test_own_stop_is_no_evidence(probing):
    a, b = probing.hosts
    for host in probing.hosts:
        host.hears(20)
    start = time.monotonic_ns()
    stopped = a.suspend()
    silent = lambda: {m.path for m in conclusive(misses(b, Direction.RX, start)) if m.count >= 30}  # noqa: E731
    until(lambda: silent() == {0, 1}, "the other one sees silence on every rail")
    resumed = time.monotonic_ns()
    a.process.send_signal(signal.SIGCONT)
    covers = lambda e: e.start_ns <= stopped + 2_000_000 and e.start_ns + e.gap_ns >= resumed  # noqa: E731
    until(lambda: any(map(covers, a.events(StallRecord))), "a record of the stop")
    stall = next(filter(covers, a.events(StallRecord)))

    def over(host: Host, direction: Direction, count: int) -> bool:
        ended = [e for e in host.events(HeardRecord) if e.mono_ns > resumed and e.count >= count]
        return {e.path for e in ended if e.direction is direction} == {0, 1}

    until(lambda: over(b, Direction.RX, 30), "heard again")
    until(lambda: over(a, Direction.TX, 0), "heard again, as the peer says")
    assert a.published().stall_max_ns == max(e.gap_ns for e in a.events(StallRecord))
    own = misses(a, Direction.RX, start) + misses(a, Direction.TX, start)
    # No silence that began before we ran again is held against anybody.
    end = stall.start_ns + stall.gap_ns
    before = [m for m in own if m.mono_ns - m.silent_ns < end]
    assert {m.path for m in before if m.direction is Direction.TX} == {0, 1}, "the peer said so"
    assert not [m for m in conclusive(before) if not b.gap_ns(m.mono_ns - m.silent_ns, m.mono_ns)]
    assert accused(a, b, Direction.RX, start) == accused(a, b, Direction.TX, start) == set()
    # The other one is told why.
    ended = [e for e in b.events(HeardRecord) if e.direction is Direction.RX and e.count >= 30]
    assert {e.path for e in ended} == {0, 1}
    assert all(e.peer_stalled for e in ended)


def test_kill_and_restart_is_a_restart_and_no_replay(probing):
    a, b = probing.hosts
    old = a.ring.header().incarnation
    a.stop(signal.SIGKILL)
    killed = time.monotonic_ns()
    until(lambda: all(row.rx_missed >= 3 for row in b.ring.paths()), "missed by the other one")
    assert not a.ring.replaced()
    a.seen.clear()
    a.start()  # probes again with the last configuration, before anybody configures it
    until(a.heard, "heard again")
    assert a.ring.header().incarnation > old
    assert a.ring.header().start_ns > killed
    until(lambda: len(b.events(PeerRestartRecord)) == 2, "a restart on both paths")
    for event in b.events(PeerRestartRecord):
        assert event.old_incarnation == old
        assert event.new_incarnation == a.ring.header().incarnation
    for host in probing.hosts:
        host.hears(20)
    assert a.refused()["replay"] == b.refused()["replay"] == 0
    assert a.refused()["auth"] == b.refused()["auth"] == 0
    assert not a.events(PeerRestartRecord)
    assert len(b.events(PeerRestartRecord)) == 2
    until(lambda: all(r.rx_missed == r.tx_missed == 0 for r in b.ring.paths()), "no misses")


def test_a_device_that_vanishes_and_returns(probing):
    a = probing.a
    probing.cut(0)
    until(lambda: not a.ring.links()[0].present, "seen to vanish")
    until(lambda: any(e.gone for e in a.events(CarrierRecord)), "a record of it")
    gone = [e for e in a.events(CarrierRecord) if e.gone]
    assert [e.link for e in gone] == [0]
    # Its end took the carrier first, or both came between two readings: one down either way.
    assert sum(e.downs for e in a.events(CarrierRecord)) == 1
    a.hears(10, (1,))
    received = a.ring.paths()[0].received
    probing.wire(0)
    until(lambda: a.ring.links()[0].bound, "bound again")
    until(lambda: a.ring.paths()[0].received > received + 5, "heard again")
    assert [e.link for e in a.events(CarrierRecord) if e.returned] == [0]


def test_an_address_that_comes_late(pair):
    for host in pair.hosts:
        host.start()
    config = pair.a.config()
    late = replace(config.links[0], address="10.77.0.99")
    pair.a.configure(replace(config, links=[late, config.links[1]]))
    until(lambda: [r.bound for r in pair.a.ring.links()] == [False, True], "the other is bound")
    until(lambda: "rail0: bind" in pair.a.log.read_text(), "a word about it")
    from pyroute2 import NetNS

    with NetNS(pair.a.name) as ipr:
        (index,) = ipr.link_lookup(ifname=RAILS[0])
        ipr.addr("add", index=index, address="10.77.0.99", prefixlen=24)
    until(lambda: pair.a.ring.links()[0].bound, "bound once the address is there")


async def test_control_socket_refuses_and_survives(probing):
    a = probing.a
    path = a.run_dir / "prober" / "ctl.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    errors = a.ring.header().control_errors

    def raw() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(path))  # with a timeout it would fail while others wait to be accepted
        sock.settimeout(PATIENCE_S)
        return sock

    with raw() as sock:
        junk = [
            b"{",
            b"[]",
            b"\xff\0\xfe",
            b'{"op": "explode"}',
            b'{"op": "configure"}',
            b"x" * 9000,
        ]
        for bad in junk:
            sock.send(bad)
            reply = json.loads(sock.recv(65536))
            assert reply["ok"] is False
            assert reply["error"]
    for _ in range(30):  # clients that die in the middle
        dying = raw()
        dying.send(b'{"op": "subscribe"}')
        dying.close()
    clients = [await ProberClient.connect(path) for _ in range(8)]
    for client in clients:
        await client.subscribe()
    epoch = a.ring.header().config_epoch
    config = a.config()
    bad_link = replace(config.links[0], address="nowhere")
    bad = replace(config, links=[bad_link, config.links[1]])
    with pytest.raises(ProberError, match=r"links\[0\].address"):
        await clients[0].configure(bad)
    assert a.ring.header().config_epoch == epoch
    await asyncio.to_thread(probing.flap, 0, 1, 0.02)
    assert all([await client.wait(PATIENCE_S) for client in clients])
    status = await clients[0].status()
    assert status["control_errors"] >= errors + len(junk) + 1
    assert status["scheduling"] == "fifo"
    assert status["subscribers"] == 8, "those that died are gone"
    for client in clients[1:]:
        await client.close()
    assert a.heard()
    a.process.send_signal(signal.SIGTERM)
    assert a.process.wait(PATIENCE_S) == 0
    with pytest.raises(ProberGoneError):
        await clients[0].request({"op": "status"})
    await clients[0].close()
    a.process = None
    assert not path.exists()
    assert not a.ring.header().running


def test_not_real_time_is_said(pair):
    pair.a.start("--rt-priority", "0")
    assert pair.a.ask("status")["scheduling"] == "other"
    assert not pair.a.ring.header().realtime

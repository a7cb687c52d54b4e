"""Real probers, real packets: two namespaces, two rails, faults made by the test."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from probe_pair import PORT, RAILS, Host, Pair, until

from fabricd.probes import wire
from fabricd.probes.client import ProberClient, ProberError, ProberGoneError
from fabricd.probes.records import (
    CarrierRecord,
    CarrierSource,
    Direction,
    HeardRecord,
    MissRecord,
    PeerRestartRecord,
    StallRecord,
)

SANITIZED = os.environ.get("FABRIC_BUILD", "release") != "release"


@pytest.fixture
def pair(lab_root, tmp_path):
    pair = Pair(tmp_path)
    try:
        pair.up()
        yield pair
        for host in pair.hosts:
            if host.process is not None:
                assert host.process.poll() is None, host.log.read_text()
                assert host.stop() == 0, host.log.read_text()
            log = host.log.read_text() if host.log.exists() else ""
            assert "ERROR: AddressSanitizer" not in log
            assert "runtime error" not in log
    finally:
        pair.down()


@pytest.fixture
def probing(pair):
    """Both probe and hear each other."""
    for host in pair.hosts:
        host.start()
        host.configure()
    for host in pair.hosts:
        until(host.heard, 10, "all paths heard")
    return pair


def misses(host: Host, direction: Direction, since_ns: int = 0) -> list[MissRecord]:
    return [e for e in host.events(MissRecord) if e.direction is direction and e.mono_ns > since_ns]


def conclusive(records: list[MissRecord]) -> list[MissRecord]:
    return [r for r in records if not r.inconclusive]


def test_paths_become_heard_and_rtt_is_plausible(probing):
    time.sleep(1.0)
    for host in probing.hosts:
        assert {e.path for e in host.events(HeardRecord) if e.first} == {0, 1}
        for row in host.ring.paths():
            assert row.address == host.address(row.index, host.other)
            assert row.interval_ns == row.peer_interval_ns == 10_000_000
            assert 100 <= row.rtt_min_ns <= 2_000_000
            assert row.rtt_min_ns <= row.rtt_smoothed_ns
            assert row.rx_lost == row.tx_lost == 0
            assert row.rx_bitmap.bit_count() > 30
        for link in host.ring.links():
            assert (link.present, link.bound, link.carrier) == (True, True, True)
            assert link.source is CarrierSource.SYSFS
        both = [s for s in host.ring.samples() if s.has_out and s.has_back]
        assert len(both) > 100
        for s in both:
            # One kernel clock on both sides: each way takes between nothing and the round trip.
            assert 0 < s.t2_ns - s.t1_ns < 50_000_000
            assert 0 < s.t4_ns - s.t3_ns < 50_000_000
        header = host.ring.header()
        assert header.realtime
        assert time.monotonic_ns() - header.heartbeat_ns < 200_000_000
        # 100 packets a second and path: the pace is kept.
        assert header.sent == pytest.approx(
            200 * (header.heartbeat_ns - header.start_ns) / 1e9, rel=0.35
        )
        assert not conclusive(misses(host, Direction.RX))


def test_trains_on_a_clock_path(pair):
    for host in pair.hosts:
        host.start()
        config = host.config(clock_train_hz=50)
        paths = [replace(p, clock=p.index == 1) for p in config.paths]
        host.configure(replace(config, paths=paths, link_interval_us=50_000))
    for host in pair.hosts:
        until(host.heard, 10, "all paths heard")
    pair.a.ring.samples(limit=100_000)
    time.sleep(1.0)
    samples = [s for s in pair.a.ring.samples() if s.has_out and s.has_back]
    by_position = {n: sum(s.out_train == n for s in samples if s.path == 1) for n in range(4)}
    assert by_position[0] == 0
    assert all(40 <= by_position[n] <= 60 for n in (1, 2, 3)), by_position
    assert {s.out_train for s in samples if s.path == 0} == {0}


@pytest.mark.parametrize("period_ms", [2, 20])
def test_flaps_are_counted_exactly(probing, period_ms):
    a = probing.a
    before = a.ring.links()[0]
    probing.flap(0, 100, period_ms / 1000)
    time.sleep(0.1)
    after = a.ring.links()[0]
    assert after.downs - before.downs == 100
    assert after.carrier_down_count - before.carrier_down_count == 100
    carrier = [e for e in a.events(CarrierRecord) if e.link == 0]
    assert sum(e.downs for e in carrier) == 100
    assert carrier[-1].carrier
    assert carrier[-1].down_count == after.carrier_down_count
    if period_ms == 20:
        assert len(carrier) > 150  # each down and each up on its own, not one sum at the end
    assert sum(e.downs for e in a.events(CarrierRecord) if e.link == 1) == 0


def test_carrier_by_rtnetlink_where_sysfs_is_another_namespaces(pair):
    pair.a.start(sysfs=False)
    pair.a.configure()
    until(lambda: len(pair.a.ring.links()) == 2, 5, "links")
    assert {link.source for link in pair.a.ring.links()} == {CarrierSource.NETLINK}
    assert "/sys does not show this network namespace" in pair.a.log.read_text()
    pair.flap(0, 100, 0.002)
    time.sleep(0.1)
    assert sum(e.downs for e in pair.a.events(CarrierRecord)) == 100


def test_black_hole_one_way(probing):
    a, b = probing.hosts
    time.sleep(0.2)
    cut = time.monotonic_ns()
    b.nft("table inet hole { chain in { type filter hook prerouting priority -300;"
          f' iifname "{RAILS[0]}" udp dport {PORT} drop; }}; }}\n')  # fmt: skip
    dead = lambda: [m for m in conclusive(misses(b, Direction.RX, cut)) if m.count >= 3]  # noqa: E731
    until(dead, 2, "three misses at the receiver")
    third = dead()[0]
    assert third.path == 0
    assert third.mono_ns - cut < (100_000_000 if SANITIZED else 60_000_000)
    told = lambda: [m for m in conclusive(misses(a, Direction.TX, cut)) if m.count >= 3]  # noqa: E731
    until(told, 1, "evidence at the sender")
    assert told()[0].path == 0
    assert abs(told()[0].mono_ns - third.mono_ns) < 30_000_000
    time.sleep(0.2)
    assert {m.path for m in conclusive(misses(b, Direction.RX, cut))} == {0}
    assert not conclusive(misses(a, Direction.RX, cut))
    assert not conclusive(misses(b, Direction.TX, cut))
    assert b.ring.links()[0].carrier
    assert b.ring.paths()[0].rx_missed >= 10

    b.nft("delete table inet hole")
    until(lambda: not b.ring.paths()[0].rx_missed, 1, "heard again")
    until(lambda: not a.ring.paths()[0].tx_missed, 1, "heard again, as the peer says")
    time.sleep(0.3)
    assert [e.direction for e in a.events(HeardRecord) if not e.first] == [Direction.TX]
    lost = b.ring.paths()[0].rx_lost
    assert lost >= 20
    assert a.ring.paths()[0].tx_lost == lost


def test_garbage_forged_and_replayed_packets_change_nothing(probing):
    scapy = pytest.importorskip("scapy.layers.inet")
    l2 = pytest.importorskip("scapy.layers.l2")
    from fabricd.probes.sniff import Probe

    a, b = probing.hosts
    ends = ((b.address(0), PORT), (a.address(0), PORT))
    with a.packet_socket(0, 0x0003) as tap:
        tap.settimeout(5)
        captured: list[bytes] = []
        while len(captured) < 20:
            frame = tap.recv(2048)
            payload = frame[-192:]
            if len(frame) == 14 + 28 + 192 and wire.genuine(payload, probing.key, *ends):
                captured.append(frame)
    genuine = captured[-1][-192:]
    fields = wire.decode(genuine)
    other_key = secrets.token_bytes(32)

    def frame(payload: bytes, source: str = ends[0][0], sport: int = PORT) -> bytes:
        return bytes(
            l2.Ether(captured[0][:14])
            / scapy.IP(src=source, dst=ends[1][0])
            / scapy.UDP(sport=sport, dport=PORT)
            / payload
        )

    def probe(**changes: int) -> Probe:
        return Probe(**{**fields, "seq": fields["seq"] + 10**6, **changes})

    unknown = (b.address(0), PORT + 1)
    attacks = {
        "short": [frame(b"x"), frame(genuine[:191]), frame(genuine + b"x"), frame(genuine[:5])],
        "magic": [frame(secrets.token_bytes(192)) for _ in range(50)],
        "version": [frame(bytes(probe(version=2).sign(probing.key, *ends)))],
        "auth": [
            frame(bytes(probe())),
            frame(bytes(probe().sign(other_key, *ends))),
            frame(bytes(probe().sign(probing.key, *reversed(ends)))),
        ],
        "replay": [frame(f[-192:]) for f in captured],
        "unknown_path": [
            frame(bytes(probe().sign(probing.key, unknown, ends[1])), sport=PORT + 1),
            frame(bytes(probe(host_id=5).sign(probing.key, *ends))),
        ],
        "unproven": [frame(bytes(probe(incarnation=123, response=77).sign(probing.key, *ends)))],
    }
    before = a.refused()
    events = len(a.events())
    state = a.ring.paths()[0]
    with b.packet_socket(0) as gun:
        for frames in attacks.values():
            for one in frames:
                gun.send(one)
    expected = {reason: before[reason] + len(frames) for reason, frames in attacks.items()}
    until(lambda: a.refused() == expected, 3, f"{a.refused()} to become {expected}")
    time.sleep(0.2)
    assert a.refused() == expected
    assert a.events()[events:] == []
    after = a.ring.paths()[0]
    assert after.peer_incarnation == state.peer_incarnation
    assert (after.restarts, after.rx_lost, after.tx_lost) == (0, 0, 0)
    assert after.received > state.received
    assert b.refused()["auth"] == 0


def test_own_stop_is_no_evidence(probing):
    a, b = probing.hosts
    time.sleep(0.2)
    start = time.monotonic_ns()
    a.process.send_signal(signal.SIGSTOP)
    time.sleep(1.0)
    a.process.send_signal(signal.SIGCONT)
    until(lambda: a.events(StallRecord), 2, "a stall record")
    time.sleep(0.5)
    stall = max(a.events(StallRecord), key=lambda e: e.gap_ns)
    assert 900_000_000 < stall.gap_ns < 1_500_000_000
    own = misses(a, Direction.RX, start) + misses(a, Direction.TX, start)
    assert own, "the peer missed us and said so"
    # No silence that began before we ran again is held against anybody.
    stopped = [m for m in own if m.mono_ns - m.silent_ns < stall.start_ns + stall.gap_ns]
    assert stopped
    assert not conclusive(stopped)
    assert all(m.count < 3 for m in own)
    assert a.ring.header().stall_max_ns == stall.gap_ns
    # The other one saw silence on every rail, and is told why.
    assert {m.path for m in conclusive(misses(b, Direction.RX, start))} == {0, 1}
    ended = [e for e in b.events(HeardRecord) if e.direction is Direction.RX and not e.first]
    assert {e.path for e in ended} == {0, 1}
    assert all(e.peer_stalled for e in ended)


def test_kill_and_restart_is_a_restart_and_no_replay(probing):
    a, b = probing.hosts
    old = a.ring.header().incarnation
    sent = a.ring.header().sent
    a.stop(signal.SIGKILL)
    time.sleep(0.2)
    assert not a.ring.replaced()
    a.seen.clear()
    a.start()  # probes again with the last configuration, before anybody configures it
    until(a.heard, 5, "heard again")
    assert a.ring.header().incarnation > old
    assert a.ring.header().sent < sent + 1000
    until(lambda: len(b.events(PeerRestartRecord)) == 2, 3, "a restart on both paths")
    for event in b.events(PeerRestartRecord):
        assert event.old_incarnation == old
        assert event.new_incarnation == a.ring.header().incarnation
    time.sleep(0.3)
    assert a.refused()["replay"] == b.refused()["replay"] == 0
    assert a.refused()["auth"] == b.refused()["auth"] == 0
    assert not a.events(PeerRestartRecord)
    assert all(row.rx_missed == row.tx_missed == 0 for row in b.ring.paths())


def test_a_device_that_vanishes_and_returns(probing):
    a = probing.a
    probing.cut(0)
    until(lambda: not a.ring.links()[0].present, 2, "seen to vanish")
    gone = [e for e in a.events(CarrierRecord) if e.gone]
    assert [e.link for e in gone] == [0]
    # Its end took the carrier first, or both came between two readings: one down either way.
    assert sum(e.downs for e in a.events(CarrierRecord)) == 1
    assert a.ring.paths()[1].rx_missed == 0
    received = a.ring.paths()[0].received
    probing.wire(0)
    until(lambda: a.ring.links()[0].bound, 3, "bound again")
    until(lambda: a.ring.paths()[0].received > received + 5, 3, "heard again")
    assert [e.link for e in a.events(CarrierRecord) if e.returned] == [0]


def test_an_address_that_comes_late(pair):
    for host in pair.hosts:
        host.start()
    config = pair.a.config()
    late = replace(config.links[0], address="10.77.0.99")
    pair.a.configure(replace(config, links=[late, config.links[1]]))
    time.sleep(0.3)
    assert [link.bound for link in pair.a.ring.links()] == [False, True]
    assert "rail0: bind" in pair.a.log.read_text()
    from pyroute2 import NetNS

    with NetNS(pair.a.name) as ipr:
        (index,) = ipr.link_lookup(ifname=RAILS[0])
        ipr.addr("add", index=index, address="10.77.0.99", prefixlen=24)
    until(lambda: pair.a.ring.links()[0].bound, 3, "bound once the address is there")


async def test_control_socket_refuses_and_survives(probing):
    a = probing.a
    path = a.run_dir / "prober" / "ctl.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    errors = a.ring.header().control_errors

    def raw() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(5)
        sock.connect(str(path))
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
    assert all([await client.wait(2.0) for client in clients])
    status = await clients[0].status()
    assert status["control_errors"] >= errors + len(junk) + 1
    assert status["scheduling"] == "fifo"
    assert status["subscribers"] == 8
    for client in clients[1:]:
        await client.close()
    assert a.heard()
    a.process.send_signal(signal.SIGTERM)
    assert a.process.wait(10) == 0
    with pytest.raises(ProberGoneError):
        await clients[0].request({"op": "status"})
    await clients[0].close()
    a.process = None
    assert not path.exists()
    assert not a.ring.header().running


def test_keys_can_be_rotated_without_a_miss(probing, tmp_path):
    a, b = probing.hosts
    # One file serves both here; give b its own so that the two change one after the other.
    new = secrets.token_hex(32)
    old = a.key_file.read_text().strip()
    a.key_file.write_text(f"{old}\n{new}\n")  # everybody accepts the new one
    for host in probing.hosts:
        host.ask("rekey")
    start = time.monotonic_ns()
    a.key_file.write_text(f"{new}\n{old}\n")  # a signs with the new one, b not yet
    a.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    b.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    for host in probing.hosts:
        assert host.refused()["auth"] == 0
        assert not conclusive(misses(host, Direction.RX, start))
    a.key_file.write_text("nonsense\n")
    with pytest.raises(ProberError, match="64 hexadecimal"):
        a.ask("rekey")
    assert a.heard()


def test_not_real_time_is_said(pair):
    pair.a.start("--rt-priority", "0")
    assert pair.a.ask("status")["scheduling"] == "other"
    assert not pair.a.ring.header().realtime


def test_usage_and_bad_key(tmp_path: Path):
    import subprocess

    from probe_pair import BUILD

    prober = BUILD / "prober" / "fabric-prober"
    assert subprocess.run([prober], capture_output=True, check=False).returncode == 2
    helped = subprocess.run([prober, "--help"], capture_output=True, check=True)
    assert b"example:" in helped.stdout
    key = tmp_path / "key"
    key.write_text("zz\n")
    bad = subprocess.run(
        [prober, "--run-dir", tmp_path, "--key-file", key], capture_output=True, check=False
    )
    assert bad.returncode == 1
    assert b"line 1: a key is 64 hexadecimal digits" in bad.stderr

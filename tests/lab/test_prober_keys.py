"""Who may speak to a prober: strangers' packets change nothing, keys rotate, a bad key stops it."""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from probe_pair import BUILD, PATIENCE_S, PORT, RAILS, accused, until

from fabricd.probes import wire
from fabricd.probes.client import ProberError
from fabricd.probes.records import CarrierRecord, Direction, PeerRestartRecord
from lab.inputs import probe_packets


def test_garbage_forged_and_replayed_packets_change_nothing(probing):
    scapy = pytest.importorskip("scapy.layers.inet")
    l2 = pytest.importorskip("scapy.layers.l2")
    from fabricd.probes.sniff import Probe

    a, b = probing.hosts
    ends = ((b.address(0), PORT), (a.address(0), PORT))
    with a.packet_socket(0, 0x0003) as tap:
        tap.settimeout(PATIENCE_S)
        captured: list[bytes] = []
        while len(captured) < 20:
            frame = tap.recv(2048)
            payload = frame[-192:]
            if len(frame) == 14 + 28 + 192 and wire.genuine(payload, probing.key, *ends):
                captured.append(frame)
    genuine = captured[-1][-192:]
    fields = probe_packets.decode(genuine)
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
    state = a.ring.paths()[0]
    start = time.monotonic_ns()
    with b.packet_socket(0) as gun:
        for frames in attacks.values():
            for one in frames:
                gun.send(one)
    expected = {reason: before[reason] + len(frames) for reason, frames in attacks.items()}
    until(lambda: sum(a.refused().values()) >= sum(expected.values()), f"refused: {expected}")
    a.hears(20)
    assert a.refused() == expected
    for kind in (PeerRestartRecord, CarrierRecord):
        assert [e for e in a.events(kind) if e.mono_ns > start] == []
    for direction in Direction:
        assert accused(a, b, direction, start) == set()
    after = a.ring.paths()[0]
    assert after.peer_incarnation == state.peer_incarnation
    assert (after.restarts, after.rx_lost, after.tx_lost) == (0, 0, 0)
    assert after.received > state.received
    assert b.refused()["auth"] == 0


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
    for host in probing.hosts:
        host.hears(20)
    b.process.send_signal(signal.SIGHUP)
    for host in probing.hosts:
        host.hears(20)
    for host, peer in ((a, b), (b, a)):
        assert host.refused()["auth"] == 0
        assert accused(host, peer, Direction.RX, start) == set()
    a.key_file.write_text("nonsense\n")
    with pytest.raises(ProberError, match="64 hexadecimal"):
        a.ask("rekey")
    assert a.heard()


@pytest.mark.nightly
def test_a_rotation_under_traffic_loses_no_probe(probing, tmp_path):
    """The three steps of docs/operate/operations.md, by the commands it names, while both probe."""
    a, b = probing.hosts
    files = {}
    for host in probing.hosts:
        files[host] = tmp_path / f"{host.number}.key"
        files[host].touch(0o600)
        files[host].write_text(probing.key.hex() + "\n")
    new = tmp_path / "new.key"
    new.touch(0o600)
    new.write_text(secrets.token_hex(32) + "\n")
    start = time.monotonic_ns()
    before = {host: [(r.rx_lost, r.tx_lost) for r in host.ring.paths()] for host in probing.hosts}
    for step in (["add", "--new", str(new)], ["use"], ["drop"]):
        for host in probing.hosts:  # one after the other, as on real hosts
            where = ["--key-file", str(files[host])]
            key(["rotate", *step, *where])
            key(["load", *where, "--run-dir", str(host.run_dir)])
            for each in probing.hosts:
                each.hears(20)
    for host, peer in ((a, b), (b, a)):
        assert host.refused()["auth"] == 0
        assert [(r.rx_lost, r.tx_lost) for r in host.ring.paths()] == before[host]
        assert accused(host, peer, Direction.RX, start) == set()
        assert host.heard()
    signed_with_old = probe_packets.encode({"seq": 10**9}, probing.key, *ends_of(a, b))
    with b.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gun:
        gun.bind((b.address(0), 0))
        gun.sendto(signed_with_old, (a.address(0), PORT))
    until(lambda: a.refused()["auth"] == 1, "the old key is refused")


def key(arguments):
    command = [sys.executable, "-m", "fabricd.cli", "key", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def ends_of(a, b):
    return (b.address(0), PORT), (a.address(0), PORT)


def test_keys_that_are_handed_over_are_looked_at(probing):
    a, _ = probing.hosts
    for bad in ("", "zz\n", probing.key.hex()[:63], 7, None):
        with pytest.raises(ProberError):
            a.ask("rekey", keys=bad)
    assert a.heard()
    a.hears(5)


def test_the_key_is_found_in_the_credentials_directory(pair, tmp_path, monkeypatch):
    a, b = pair.hosts
    (tmp_path / "credentials").mkdir()
    credential = tmp_path / "credentials" / "probe.key"
    credential.touch(0o600)
    credential.write_text(pair.key.hex())
    b.start()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credential.parent))
    a.key_file = None
    a.start()
    for host in pair.hosts:
        host.configure()
    for host in pair.hosts:
        until(host.heard, "all paths heard")


def test_sniff_on_the_wire_tells_right_from_forged(probing, tmp_path):
    pytest.importorskip("scapy")
    a, b = probing.hosts
    forged = probe_packets.encode(
        {"seq": 1, "host_id": 0xBAD}, secrets.token_bytes(32), *ends_of(a, b)
    )
    inside = ["ip", "netns", "exec", a.name, sys.executable, "-m", "fabricd.cli"]
    command = [*inside, "sniff", RAILS[0], "--port", str(PORT), "--key-file", str(a.key_file)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sniffer,
        b.inside(),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gun,
    ):
        gun.bind((b.address(0), 0))
        seen = []
        try:
            for line in iter(sniffer.stdout.readline, ""):
                seen.append(line)
                gun.sendto(forged, (a.address(0), PORT))
                wrong = [x for x in seen if "TAG WRONG" in x]
                if wrong and len(seen) - len(wrong) >= 20:
                    break
        finally:
            sniffer.terminate()
    assert all("host 00000bad" in line for line in wrong)
    assert all("tag right" in line for line in seen if line not in wrong)


def test_usage_and_bad_key(tmp_path: Path):
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

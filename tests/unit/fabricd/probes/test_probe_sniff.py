"""``fabricctl sniff``: right, forged and mangled packets out of a pcap."""

import gzip
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from on_demand import on_demand
from typer.testing import CliRunner

from fabricd.cli import app
from lab.inputs import probe_packets

inet = on_demand("scapy.layers.inet")
inet6 = on_demand("scapy.layers.inet6")
l2 = on_demand("scapy.layers.l2")
sniff = on_demand("fabricd.probes.sniff", needs="scapy")
sniffing = on_demand("fabricd.probes.sniffing", needs="scapy")

KEY, OTHER = secrets.token_bytes(32), secrets.token_bytes(32)
ENDS = (("10.0.0.1", 9200), ("10.0.0.2", 9200))
ENDS6 = (("fd00::1", 9200), ("fd00::2", 9200))


@pytest.fixture(scope="module", autouse=True)
def bound():
    sniff.bind()


def packet(payload, ends=ENDS):
    ip = inet6.IPv6(src=ends[0][0], dst=ends[1][0]) if ":" in ends[0][0] else inet.IP(
        src=ends[0][0], dst=ends[1][0]
    )  # fmt: skip
    udp = inet.UDP(sport=ends[0][1], dport=ends[1][1])
    ethernet = l2.Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    return l2.Ether(bytes(ethernet / ip / udp / payload))


def probe(key=KEY, ends=ENDS, **fields):
    return packet(probe_packets.encode({"seq": 7, "host_id": 0xABCD, **fields}, key, *ends), ends)


@pytest.mark.parametrize("ends", [ENDS, ENDS6])
def test_right_and_wrong_tags(ends):
    seen = sniffing.look(probe(ends=ends), [OTHER, KEY])
    assert seen.genuine is True
    assert "host 0000abcd path 0 seq 7" in seen.summary
    named = sniffing.look(probe(KEY, ends), [KEY], {0xABCD: "gpu-07"})
    assert "host gpu-07 path 0 seq 7" in named.summary
    assert sniffing.look(probe(OTHER, ends), [KEY]).genuine is False
    assert "TAG WRONG" in sniffing.look(probe(OTHER, ends), [KEY]).summary
    assert sniffing.look(probe(ends=ends)).genuine is None


def test_a_tag_is_for_its_ends_alone():
    """A packet that was caught is of no use between other addresses, ports, or the other way."""
    raw = probe_packets.encode({"seq": 7}, KEY, *ENDS)
    for ends in (
        tuple(reversed(ENDS)),
        (ENDS[0], ("10.0.0.3", 9200)),
        (("10.0.0.1", 9201), ENDS[1]),
    ):
        assert sniffing.look(packet(raw, ends), [KEY]).genuine is False


def test_every_bit_counts():
    raw = probe_packets.encode({"seq": 7}, KEY, *ENDS)
    for bit in range(8 * 8, 8 * len(raw), 37):  # after magic, version and size
        forged = bytearray(raw)
        forged[bit // 8] ^= 1 << bit % 8
        assert sniffing.look(packet(bytes(forged)), [KEY]).genuine is False


@given(st.binary(max_size=400))
def test_any_payload_gives_a_line(payload):
    seen = sniffing.look(packet(payload), [KEY])
    assert seen.genuine is not True
    assert "\n" not in seen.summary


@pytest.fixture
def pcap(tmp_path):
    path = tmp_path / "x.pcap"
    forged = sniff.Probe(probe_packets.encode({"seq": 9}, KEY, *ENDS))
    forged.seq = 10
    strange = packet(b"z", (("10.0.0.1", 1), ("10.0.0.2", 2)))
    packets = [probe(seq=8), packet(bytes(forged)), packet(b"x"), packet(b"y" * 192), strange]
    on_demand("scapy.utils").wrpcap(str(path), packets)
    return path


def test_the_command_reads_and_writes_pcaps(pcap, tmp_path):
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text(KEY.hex())
    kept = tmp_path / "kept.pcap"
    done = CliRunner().invoke(
        app, ["sniff", "--read", str(pcap), "--key-file", str(key), "--write", str(kept)]
    )
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert ["tag right" in line for line in lines] == [True, False, False, False]
    assert "TAG WRONG" in lines[1]
    assert "1 bytes: not a probe" in lines[2]
    assert KEY.hex() not in done.stdout
    again = CliRunner().invoke(app, ["sniff", "--read", str(kept), "--count", "1", "--full"])
    assert "rx_bitmap" in again.stdout
    assert len([x for x in again.stdout.splitlines() if "seq 8" in x]) == 1


def test_a_packed_pcap_is_read_and_a_damaged_one_is_an_error(pcap, tmp_path):
    packed = tmp_path / "x.pcap.gz"
    whole = gzip.compress(pcap.read_bytes())
    packed.write_bytes(whole)
    done = CliRunner().invoke(app, ["sniff", "--read", str(packed)])
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 4
    for damaged in (whole[:12], whole[:2], whole[:10] + b"\xff" * 20, b"\x1f\x8bgarbage"):
        packed.write_bytes(damaged)
        done = CliRunner().invoke(app, ["sniff", "--read", str(packed)])
        assert done.exit_code == 1, done.output
        assert isinstance(done.exception, SystemExit), "an error for the operator, no traceback"


def test_what_is_no_pcap_and_wrong_usage(tmp_path):
    (tmp_path / "x").write_text("garbage")
    assert CliRunner().invoke(app, ["sniff", "--read", str(tmp_path / "x")]).exit_code == 1
    assert CliRunner().invoke(app, ["sniff"]).exit_code == 2
    assert CliRunner().invoke(app, ["sniff", "no-such-if"]).exit_code == 1


def test_neither_daemon_nor_fabricctl_imports_scapy():
    """And fabricctl nothing that would make every command wait."""
    code = "import sys, {0}; sys.exit(','.join({{'scapy', {1}}} & set(sys.modules)))"
    root = Path(__file__).resolve().parents[4]
    for module, heavy in (
        ("fabricd.daemon", ""),
        ("fabricd.cli", "'matplotlib', 'numpy', 'pyroute2', 'sqlite3', 'torch'"),
    ):
        script = code.format(module, heavy)
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=root, check=False, capture_output=True, text=True
        )
        assert done.stderr.strip() == "", module

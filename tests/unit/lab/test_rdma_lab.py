"""The pure parts of the RDMA lab: kernel packages, scripts, nftables, perftest, kernel logs."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.topology import RailTarget, Topology, TopologyError
from lab.vm import apt, initramfs, kernel
from lab.vm.rdma import (
    cli,
    dmesg,
    faults,
    namespaces,
    packetfaults,
    pair,
    payload,
    perftest,
    ports,
)
from lab.vm.rdma.fault import GuestFault
from lab.vm.rdma.holds import Holds, Resource
from lab.vm.rdma.perf import longest_stall_ns
from lab.vm.rdma.registry import claim, load
from lab.vm.rdma.site import GuestDir
from lab.vm.wire import VmError

TOPOLOGY = Topology("t", hosts=4, rails=2, spines=0, rate_bps=0, management=True)

BANDWIDTH = """----------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : rxe0
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      200              0.18               0.147                0.000281
---------------------------------------------------------------------------------------
"""
LATENCY = """ #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 8       500          190.10         2100.00      240.25              260.50            33.10     \
        700.75                 2100.00
"""


def test_backports_come_from_the_mirrors_of_the_release_itself(tmp_path):
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "deb http://mirror.example/security bookworm-security main\n"
        "deb http://mirror.example/debian bookworm main\n"
    )
    (tmp_path / "sources.list.d" / "debian.sources").write_text(
        "Types: deb\nURIs: http://other.example\nSuites: bookworm bookworm-updates\n"
        "Components: main\n"
    )
    lines, stanzas = apt.other_suite(tmp_path, "bookworm", "trixie-backports")
    assert lines == "deb http://mirror.example/debian trixie-backports main\n"
    assert "Suites: trixie-backports\n" in stanzas
    assert "http://other.example\n" in stanzas


def test_version_of_the_metapackage_is_that_of_its_image():
    record = (
        "Package: linux-image-amd64\nDepends: linux-base-amd64 (= 7.3.4-1~bpo13+1), "
        "linux-image-7.3.4+deb13-amd64 (= 7.3.4-1~bpo13+1), linux-modules-amd64 (= 7.3.4)\n"
    )
    assert kernel.version_of(record) == "7.3.4+deb13-amd64"
    with pytest.raises(ValueError, match="depends on no kernel"):
        kernel.version_of("Package: linux-image-amd64\nDepends: libc6\n")


def test_root_modules_may_be_files_or_built_in_but_not_missing():
    files = "kernel/virtio_blk.ko:\nkernel/ext4.ko: kernel/jbd2.ko\n"
    found = initramfs.root_modules(files, "kernel/drivers/virtio/virtio_pci.ko\n")
    assert found == ("virtio_blk", "ext4")
    with pytest.raises(KeyError, match="virtio_pci"):
        initramfs.root_modules(files, "")


def test_every_wire_has_two_different_indices_and_ends_at_its_leaf():
    (fabric, *_) = namespaces.network_script(TOPOLOGY, 4500)
    for host in range(4):
        for rail in range(2):
            assert f"mtu 4500 type veth peer name rail{rail} mtu 4500 netns h{host}" in fabric
            assert f"link set leaf{rail}h{host} master leaf{rail} up" in fabric
    indices = [word for before, word in itertools.pairwise(fabric.split()) if before == "index"]
    assert len(set(indices)) == len(indices) == 12
    # A host has a handful of devices, numbered from 1.
    assert min(int(index) for index in indices) > 100


def test_a_device_is_made_moved_and_named_in_that_order():
    lines = namespaces.rxe_script([(0, 0), (0, 1), (3, 1)])
    text = "\n".join(lines)
    for host, rail in ((0, 0), (0, 1), (3, 1)):
        made = text.index(f"link add h{host}r{rail} type rxe netdev rail{rail}")
        moved = text.index(f"dev set h{host}r{rail} netns h{host}")
        named = text.index(f"dev set h{host}r{rail} name rxe{rail}")
        assert made < moved < named
    assert len(lines) == 5  # a start of a program costs 50 ms under emulation


def test_the_pairs_last_cable_is_the_management_network():
    lines = pair.host_script(TOPOLOGY, 1, 1500)
    assert lines[0] == "ip link set rail2 name mgmt0"
    assert "ip addr add 10.249.0.2/24 dev mgmt0" in lines
    assert "rdma link add rxe1 type rxe netdev rail1" in lines


def test_an_nft_table_has_one_chain_for_each_device_and_hook():
    text = packetfaults.table_text("t", [("a", "ingress"), ("a", "egress")], ("counter drop",))
    assert text.count("counter drop") == 2
    assert 'chain ingress_a {\ntype filter hook ingress device "a"' in text
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize(
    ("kind", "target", "parameters", "error"),
    [
        ("carrier", "h0:rail0", {"percent": 3}, "no parameter 'percent'"),
        ("loss", "h0:rail0", {"percent": 0}, "percent = 0"),
        ("loss", "h0:rail0", {"direction": "up"}, "direction 'up'"),
        ("netem", "h0:rail0", {"direction": "up"}, "direction 'up'"),
        ("mtu", "h0:rail0", {"mtu": 68}, "mtu = 68"),
        ("flap", "h0:rail0", {"count": 0}, "count = 0"),
        ("pause", "h0", {}, "no fault 'pause' in a lab of kind namespaces"),
        ("nothing", "h0", {}, "no fault 'nothing'"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(kind, target, parameters, error):
    with pytest.raises(TopologyError, match=error):
        faults.make("namespaces", kind, target, parameters)


def test_both_kinds_of_lab_have_their_faults():
    shared = {"carrier", "leaf", "admin", "flap", "mtu", "address", "gid", "blackhole"}
    shared |= {"roce-drop", "ip-drop", "ack-drop", "loss", "netem", "rxe", "freeze", "kill"}
    assert set(faults.known("namespaces")) == shared
    assert set(faults.known("pair")) == shared | {"module", "unplug", "pause", "reboot"}
    assert faults.known("pair")["kill"] is faults.Killed
    assert faults.known("namespaces")["kill"] is faults.HostDown


def test_perftest_rows():
    assert perftest.bandwidth(BANDWIDTH) == perftest.Bandwidth(65536, 200, 0.147)
    expected = perftest.Latency(8, 500, 190.1, 240.25, 260.5, 700.75)
    assert perftest.latency(LATENCY) == expected


@given(st.text())
def test_what_is_no_row_is_an_error(text):
    for parse in (perftest.bandwidth, perftest.latency):
        with pytest.raises(perftest.PerftestError):
            parse(text)


@given(st.text(alphabet="0123456789.x \n", max_size=80))
def test_a_damaged_row_is_an_error_or_a_row(text):
    try:
        row = perftest.bandwidth(f" #bytes  #iterations\n{text}")
    except perftest.PerftestError:
        return
    assert isinstance(row, perftest.Bandwidth)


def test_perftest_arguments():
    common = {"rail": 1, "size": 8, "count": 5, "port": 9}
    server = perftest.arguments("ib_write_lat", **common)
    assert server[-1] == "9"
    assert "--report_gbits" not in server
    client = perftest.arguments("ib_write_bw", **common, server="10.0.0.1")
    assert client[-2:] == ["--report_gbits", "10.0.0.1"]
    with pytest.raises(perftest.PerftestError, match="count = 4"):
        perftest.arguments("ib_write_bw", **(common | {"count": 4}))


def test_faults_of_the_kernel_are_told_from_a_slow_machine():
    log = (
        "[1.0] WARNING: CPU: 0 PID: 1 at drivers/infiniband/sw/rxe/rxe_pool.c:116\n"
        "[2.0] watchdog: BUG: soft lockup - CPU#0 stuck for 22s!\n"
        "[3.0] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks\n"
        "[4.0] BUG: KASAN: slab-use-after-free in rxe_free\n"
        "[5.0] rxe0: set active\n"
        "[6.0] Spectre V2 : WARNING: Unprivileged eBPF is enabled\n"
        "[7.0] WARNING: drivers/infiniband/core/verbs.c:12 at ib_free_cq, CPU#1: qp/8\n"
    )
    assert [line[:5] for line in dmesg.kernel_faults(log)] == ["[1.0]", "[4.0]", "[7.0]"]


def test_only_a_sanitizers_libraries_go_along():
    ldd = (
        "\tlinux-vdso.so.1 (0x1)\n\tlibasan.so.8 => /usr/lib/libasan.so.8 (0x2)\n"
        "\tlibubsan.so.1 => /usr/lib/libubsan.so.1 (0x3)\n\tlibc.so.6 => /lib/libc.so.6 (0x4)\n"
    )
    found = payload.libraries(ldd)
    assert [path.name for path in found] == ["libasan.so.8", "libubsan.so.1"]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=30))
def test_a_resource_is_broken_while_anybody_holds_it(steps):
    holds, resource, held = Holds(), Resource("cable", 0, 1), set()
    for take, holder in steps:
        before = bool(held)
        if take:
            first = holds.take(resource, holder)
            assert first == (not before)
            held.add(holder)
        else:
            last = holds.release(resource, holder)
            assert last == (held == {holder})
            held.discard(holder)
        assert holds.held(resource) == bool(held)


def test_a_lab_whose_owner_is_gone_is_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.vm.machine.RUN", tmp_path)
    where = GuestDir("t")
    claim(where, "namespaces", TOPOLOGY)
    with pytest.raises(Exception, match="is up"):
        claim(where, "namespaces", TOPOLOGY)
    assert load("t").topology == TOPOLOGY
    text = where.info.read_text().replace('"start": ', '"start": 9')
    where.info.write_text(text)
    claim(GuestDir("other"), "pair", TOPOLOGY)  # any lab's start removes what is stale
    assert not where.root.exists()
    claim(where, "pair", TOPOLOGY)
    assert load("t").kind == "pair"
    where.info.write_text("{")
    assert load("t") is None


def test_parameters_of_the_command_line():
    assert cli.parameter("percent=2.5") == ("percent", 2.5)
    assert cli.parameter("mtu=640") == ("mtu", 640)
    assert cli.parameter("spec=delay 5ms") == ("spec", "delay 5ms")
    with pytest.raises(TopologyError, match="NAME=VALUE"):
        cli.parameter("percent")


def test_an_entry_of_the_gid_table_is_an_address_or_empty():
    assert ports.gid_text("0000:0000:0000:0000:0000:ffff:0a01:0003") == "10.1.0.3"
    assert ports.gid_text("fd00:0001:0000:0000:0000:0000:0000:0002") == "fd00:1::2"
    assert ports.gid_text("0000:0000:0000:0000:0000:0000:0000:0000") == ""


class Counted(GuestFault):
    """Changes nothing but a list; ``fails`` makes its start fail."""

    kind = "counted"
    targets = (RailTarget,)
    alone_on = "counted"

    def __init__(self, target, fails=False):
        super().__init__(target)
        self.fails, self.calls = fails, []

    def change(self):
        if self.fails:
            raise VmError("no")
        self.calls.append("change")
        return 1, 2

    def repair(self):
        self.calls.append("repair")
        return 3, 4


@pytest.fixture
def bare_lab(tmp_path, monkeypatch):
    """A lab without machines: what is said of faults before and after they touch any."""
    monkeypatch.setattr("lab.vm.machine.RUN", tmp_path)
    lab = namespaces.NamespaceLab(TOPOLOGY, None)
    lab.open()
    return lab


def test_a_fault_records_both_ends_with_the_guests_time(bare_lab):
    with bare_lab.inject(Counted("h1:rail0")) as fault:
        assert bare_lab.in_force == [fault]
        with pytest.raises(TopologyError, match="is in force"):
            bare_lab.arm(Counted("h1:rail0")).start()
        with bare_lab.inject(Counted("h1:rail1")):
            pass
    assert fault.calls == ["change", "repair"]
    rows = [(row["phase"], row["guest_ns"]) for row in bare_lab.truth() if row["id"] == fault.id]
    assert rows == [("start", [1, 2]), ("end", [3, 4])]


def test_a_fault_that_does_not_start_leaves_nothing(bare_lab):
    with pytest.raises(VmError, match="no"), bare_lab.inject(Counted("h1:rail0", fails=True)):
        pass
    assert bare_lab.truth() == []
    assert bare_lab.in_force == []
    with bare_lab.inject(Counted("h1:rail0")):
        assert len(bare_lab.in_force) == 1


def test_targets_are_checked_before_anything_happens(bare_lab):
    for target, error in (("h1", "takes a target like"), ("h9:rail0", "no host 9")):
        with pytest.raises(TopologyError, match=error):
            bare_lab.arm(Counted(target))
    with pytest.raises(TopologyError, match="needs a lab of kind pair"):
        bare_lab.arm(faults.Paused("h1"))


def test_a_stall_is_between_two_bytes():
    def sample(ms, count):
        return {"type": "sample", "t_ns": ms * 1_000_000, "bytes": count}

    rows = [sample(0, 0), sample(500, 0), sample(510, 8), sample(520, 16), sample(600, 16)]
    assert longest_stall_ns(rows) == 10_000_000
    rows += [{"type": "iteration", "t_ns": 700_000_000}, sample(820, 24), sample(2000, 24)]
    assert longest_stall_ns(rows) == 300_000_000
    assert longest_stall_ns([]) == 0

"""Verbs devices, ports and device nodes: what the field reported, on copies of sysfs layouts."""

import errno
import shutil

import pytest
from host_trees import Host, seen

from fabricd.doctor.finding import Severity


@pytest.fixture
def mlx5(tmp_path):
    host = Host(tmp_path / "root", "mlx5_roce")
    host.config("rail0", "rail1")
    return host


def make(tmp_path, listing):
    return Host(tmp_path / "root", listing)


@pytest.mark.parametrize("listing", ["mlx5_roce", "mlx5_ib", "rxe"])
def test_a_sound_host_has_no_finding_above_a_note(tmp_path, listing):
    host = make(tmp_path, listing)
    assert seen(host.findings(), Severity.WARNING) == []
    assert seen(host.findings(), Severity.CRITICAL) == []


def test_the_facts_of_a_connectx(mlx5):
    facts = mlx5.facts()
    assert [(d.name, d.driver, d.pci) for d in facts.verbs] == [
        ("mlx5_0", "mlx5_core", "0000:18:00.0"), ("mlx5_1", "mlx5_core", "0000:19:00.0"),
    ]  # fmt: skip
    port = facts.ports[0]
    assert (port.link_layer, port.state, port.rate) == ("Ethernet", "ACTIVE", "400 Gb/sec (4X NDR)")
    assert port.netdevs == ("rail0",)
    assert [gid.index for gid in port.gids] == [0, 1, 2, 3], "empty entries are left out"
    assert [str(gid.address) for gid in port.usable_gids] == ["10.0.0.1"]
    assert [(n.name, n.device) for n in facts.nodes] == [
        ("uverbs0", "mlx5_0"), ("uverbs1", "mlx5_1"),
    ]  # fmt: skip
    assert facts.rails == ("rail0", "rail1")


def test_the_facts_of_soft_roce(tmp_path):
    facts = make(tmp_path, "rxe").facts()
    assert [(d.name, d.driver, d.pci) for d in facts.verbs] == [
        ("rxe0", "rdma_rxe", ""), ("rxe1", "rdma_rxe", ""),
    ]  # fmt: skip
    assert facts.rails == ("rail0", "rail1")
    assert facts.rails_by == "verbs ports"


def test_ipoib_is_found_by_its_function(tmp_path):
    assert make(tmp_path, "mlx5_ib").facts().ports[0].netdevs == ("ib0",)


def test_without_rdma_it_says_so_and_all_is_well(tmp_path):
    host = make(tmp_path, None)
    host.net("eth0", "mtu=1500", "driver=virtio_net")
    found = host.findings()
    assert seen(found) == [("host", "There is no verbs device in this host: the plugin carries "
                            "TCP.")]  # fmt: skip
    assert found[0].severity is Severity.NOTE


def test_a_nic_whose_rdma_module_is_not_loaded_is_named_with_the_module(tmp_path):
    host = make(tmp_path, None)
    host.net("rail0", "mtu=9000", "driver=mlx5_core")
    host.net("eth0", "mtu=1500", "driver=mlx5_core")
    host.config("rail0")
    (finding,) = [f for f in host.findings("verbs-devices") if f.severity is Severity.WARNING]
    assert "module mlx5_ib is not loaded" in finding.seen
    assert finding.subject == "rail0", "eth0 is no rail: it needs no verbs"
    assert "modprobe mlx5_ib" in finding.action


@pytest.mark.parametrize(
    ("state", "layer", "words"),
    [("1:DOWN", "Ethernet", "cable"), ("2:INIT", "InfiniBand", "subnet manager")],
)
def test_a_port_that_is_not_active(tmp_path, state, layer, words):
    host = make(tmp_path, "mlx5_ib" if layer == "InfiniBand" else "mlx5_roce")
    host.config("rail0", "ib0")
    host.port("mlx5_0", 1, layer, state, "400", "Gb/sec")
    (finding,) = host.findings("port-state")
    assert finding.subject == "mlx5_0/1"
    assert finding.severity is Severity.CRITICAL
    assert words in finding.action


def test_ports_of_different_rates(mlx5):
    mlx5.port("mlx5_1", 1, "Ethernet", "4:ACTIVE", "200", "Gb/sec", "(4X", "HDR)")
    (finding,) = mlx5.findings("port-state")
    assert finding.detail == ("mlx5_0/1: 400 Gb/sec (4X NDR)", "mlx5_1/1: 200 Gb/sec (4X HDR)")


def refused(host, words):
    (finding,) = host.findings("uverbs")
    assert (finding.subject, finding.severity) == ("mlx5_1", Severity.CRITICAL)
    assert words in finding.action
    return finding.seen


def test_a_device_node_that_is_missing_in_a_container(mlx5):
    """#234, #1634."""
    mlx5.path("dev/infiniband/uverbs1").unlink()
    assert "No such file" in refused(mlx5, "--device=/dev/infiniband")


@pytest.mark.parametrize(
    ("code", "words"), [(errno.EACCES, "0666"), (errno.EPERM, "device cgroup")]
)
def test_a_device_node_that_may_not_be_opened(mlx5, code, words):
    mlx5.machine.nodes["uverbs1"] = code
    refused(mlx5, words)


def test_a_device_node_of_another_device(mlx5):
    mlx5.write("sys/class/infiniband_verbs/uverbs1/dev", "231:193")
    assert "sysfs says 231:193" in refused(mlx5, "udev make it again")


def test_a_file_in_a_device_nodes_place(mlx5):
    mlx5.path("dev/infiniband/uverbs1").unlink()
    mlx5.write("dev/infiniband/uverbs1", "")
    assert "no character device" in refused(mlx5, "udev make it again")


def test_the_kernel_made_no_node(mlx5):
    for name in ("ibdev", "dev"):
        mlx5.path(f"sys/class/infiniband_verbs/uverbs1/{name}").unlink()
    (finding,) = mlx5.findings("uverbs")
    assert "no uverbs device for mlx5_1" in finding.seen


def test_ib_uverbs_that_is_not_loaded(mlx5):
    shutil.rmtree(mlx5.path("sys/class/infiniband_verbs"))
    mlx5.write("proc/modules", "mlx5_ib 397312 0 - Live 0x0\nmlx5_core 1 0 - Live 0x0\n")
    critical = [f for f in mlx5.findings("verbs-devices") if f.severity is Severity.CRITICAL]
    assert ["modprobe ib_uverbs" in f.action for f in critical] == [True]


def test_without_libibverbs_the_job_runs_over_tcp(mlx5):
    mlx5.machine.children["fabricd.doctor.verbs_query"] = {
        "library": "", "error": "libibverbs is not installed", "devices": {},
    }  # fmt: skip
    found = [f for f in mlx5.findings("verbs-devices") if f.severity is Severity.WARNING]
    assert ["libibverbs.so.1 is not installed" in f.seen for f in found] == [True]


def pod(tmp_path, *given):
    """A container without the daemon's configuration that was given some of the devices."""
    host = make(tmp_path, "mlx5_roce")
    for node in ("uverbs0", "uverbs1"):
        if node not in given:
            host.path(f"dev/infiniband/{node}").unlink()
    return host


def test_a_pod_that_was_given_one_device_of_two_is_well(tmp_path):
    host = pod(tmp_path, "uverbs0")
    host.port("mlx5_1", 1, "Ethernet", "1:DOWN", "400", "Gb/sec")
    host.no_gids("mlx5_1")
    host.addresses({"rail0": "10.0.0.1/24"})
    findings = host.findings("uverbs", "port-state", "gid-table", "gid-namespace", "mtu")
    assert [(f.check, f.severity) for f in findings] == [("uverbs", Severity.NOTE)]
    assert findings[0].detail[0].startswith("mlx5_1: ")


def test_a_pod_that_was_given_none_is_critical(tmp_path):
    found = pod(tmp_path).findings("uverbs")
    assert [(f.subject, f.severity) for f in found] == [
        ("mlx5_0", Severity.CRITICAL), ("mlx5_1", Severity.CRITICAL),
    ]  # fmt: skip


def test_without_a_configuration_a_port_may_be_nobodys(tmp_path):
    host = make(tmp_path, "mlx5_roce")
    host.port("mlx5_1", 1, "Ethernet", "1:DOWN", "400", "Gb/sec")
    assert [f.severity for f in host.findings("port-state")] == [Severity.WARNING]
    host.port("mlx5_1", 1, "Ethernet", "4:ACTIVE", "400", "Gb/sec", "(4X", "NDR)")
    host.no_gids("mlx5_1")
    assert [f.severity for f in host.findings("gid-table")] == [Severity.WARNING]
    host.no_gids("mlx5_0")
    assert {f.severity for f in host.findings("gid-table")} == {Severity.CRITICAL}


def test_ports_that_are_no_rails_do_not_concern_a_job(mlx5):
    mlx5.config("rail0")
    mlx5.port("mlx5_1", 1, "Ethernet", "1:DOWN", "10", "Gb/sec")
    mlx5.path("dev/infiniband/uverbs1").unlink()
    assert seen(mlx5.findings("port-state", "gid-table", "gid-namespace")) == []
    assert [f.severity for f in mlx5.findings("uverbs")] == [Severity.NOTE]

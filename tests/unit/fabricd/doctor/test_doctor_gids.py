"""GID tables: empty, sparse, RoCE v1 alone, link-local alone, IPv6 alone, another namespace's."""

import errno

import pytest
from host_trees import Host, seen

from fabricd.doctor.finding import Severity

TABLE = "sys/class/infiniband/mlx5_0/ports/1"


@pytest.fixture
def mlx5(tmp_path):
    host = Host(tmp_path / "root", "mlx5_roce")
    host.config("rail0", "rail1")
    return host


def critical(host, check="gid-table"):
    (finding,) = [f for f in host.findings(check) if f.severity is Severity.CRITICAL]
    assert finding.subject == "mlx5_0/1"
    return finding


def test_an_empty_table(mlx5):
    mlx5.no_gids("mlx5_0")
    finding = critical(mlx5)
    assert "has no entry" in finding.seen
    assert "IP address" in finding.action


def test_link_local_entries_alone_are_never_chosen(mlx5):
    """#1573, #1587, #769: the table of a pod."""
    mlx5.empty("mlx5_0", 1, 2, 2)
    finding = critical(mlx5)
    assert "link-local RoCE v2 entries (fe80::) alone" in finding.seen
    assert "hostNetwork" in finding.action
    assert [line.split()[0] for line in finding.detail] == ["index", "0", "1"], "table printed"
    assert "fe80:0000:0000:0000:0ac0:ebff:fe10:0100  RoCE v2     rail0" in finding.detail[2]


def test_without_a_roce_v2_entry(mlx5):
    for index in range(4):
        mlx5.write(f"{TABLE}/gid_attrs/types/{index}", "IB/RoCE v1")
    finding = critical(mlx5)
    assert "no RoCE v2 entry" in finding.seen
    assert "default_roce_mode" in finding.action


def test_entries_that_answer_einval_are_skipped_and_shown(mlx5):
    """#1573: a sparse table, of which a container may not read every entry."""
    for index in (0, 1, 2):
        mlx5.fail(f"{TABLE}/gids/{index}", errno.EINVAL)
    (finding,) = mlx5.findings("gid-table")
    assert finding.severity is Severity.NOTE
    assert "3 entries of the GID table cannot be read (Invalid argument)" in finding.seen
    assert "Do not set NCCL_IB_GID_INDEX" in finding.action
    assert "    0  cannot be read: Invalid argument" in finding.detail


def test_types_that_cannot_be_read(mlx5):
    for index in range(4):
        mlx5.fail(f"{TABLE}/gid_attrs/types/{index}", errno.EINVAL)
    assert "types of mlx5_0/1's GIDs cannot be read" in critical(mlx5).seen


def test_a_damaged_gid_is_no_address(mlx5):
    mlx5.write(f"{TABLE}/gids/3", "0000:zzzz")
    mlx5.write(f"{TABLE}/gids/1", "fe80:")
    assert [f.subject for f in mlx5.findings("gid-namespace")] == ["mlx5_0/1"]


def test_ipv6_alone_is_noted_with_the_variable(tmp_path):
    """uccl#803: bnxt with IPv6 addresses alone."""
    host = Host(tmp_path / "root", "bnxt_re")
    host.addresses({"ens3np0": "fd00:0:0:7::1/64"})
    (finding,) = host.findings("gid-table", "gid-namespace")
    assert finding.severity is Severity.NOTE
    assert "NCCL_IB_ADDR_FAMILY=AF_INET6" in finding.action
    assert len(finding.detail) == 5


def test_ports_without_a_family_in_common(mlx5):
    mlx5.gid("mlx5_1", 1, 3, "fd00:0000:0000:0007:0000:0000:0000:0001", "RoCE", "v2|rail1")
    found = [f for f in mlx5.findings("gid-table") if f.severity is Severity.WARNING]
    assert [f.detail for f in found] == [("mlx5_0/1: IPv4", "mlx5_1/1: IPv6")]


def test_the_address_of_a_gid_outside_the_namespace(mlx5):
    """lium-io#1202, k8s-rdma-shared#87: a pod with an address of its own on the host's NIC."""
    mlx5.addresses({"eth0": "10.244.3.17/32", "rail1": "10.1.0.1/24"})
    finding = critical(mlx5, "gid-namespace")
    assert "(10.0.0.1)" in finding.seen
    assert "hostNetwork" in finding.action


def test_a_port_that_is_down_has_an_empty_table_for_that_reason(mlx5):
    mlx5.no_gids("mlx5_0")
    mlx5.port("mlx5_0", 1, "Ethernet", "1:DOWN", "400", "Gb/sec")
    assert seen(mlx5.findings("gid-table")) == []


def test_addresses_that_cannot_be_had_are_no_finding_but_named(mlx5):
    del mlx5.machine.tools["ip -j address show"]
    assert seen(mlx5.findings("gid-namespace")) == []
    assert mlx5.facts().unexamined["IP addresses"] == "ip is not installed"
    mlx5.machine.tools["ip -j address show"] = "Command line is not complete."
    assert "no JSON" in mlx5.facts().unexamined["IP addresses"]

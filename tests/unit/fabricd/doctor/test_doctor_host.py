"""Locked memory, ACS, GPU memory, MTU, bonds, addresses and firewall."""

import json

import pytest
from host_trees import Host, config_space, seen, verbs_answer
from hypothesis import given
from hypothesis import strategies as st

from fabricd.doctor.checks.network import roce_mtu
from fabricd.doctor.finding import Severity
from fabricd.doctor.gather import firewall, limits
from fabricd.doctor.gather.pci import ConfigSpaceError, acs_control
from fabricd.doctor.tree import MAX_BYTES, Tree


@pytest.fixture
def mlx5(tmp_path):
    host = Host(tmp_path / "root", "mlx5_roce")
    host.config("rail0", "rail1")
    return host


def one(host, check):
    (finding,) = host.findings(check)
    return finding


# Locked memory: nccl-tests#206, ucx#8229


def test_the_shells_limit_is_critical_where_buffers_cannot_be_registered(mlx5):
    mlx5.write("proc/self/limits", "Max locked memory         65536   65536   bytes     \n")
    finding = one(mlx5, "memlock")
    assert finding.severity is Severity.CRITICAL
    assert "this shell may lock 64 KiB of memory" in finding.seen
    assert "ulimit -l unlimited" in finding.action


def test_systemds_default_is_too_little_and_the_unit_is_named(mlx5):
    name = next(key for key in mlx5.machine.tools if key.startswith("systemctl"))
    mlx5.machine.tools[name] = (
        "Id=slurmd.service\nLoadState=loaded\nLimitMEMLOCKSoft=8388608\n\n"
        "Id=docker.service\nLoadState=not-found\nLimitMEMLOCKSoft=8388608\n\n"
        "Id=containerd.service\nLoadState=loaded\nLimitMEMLOCKSoft=18446744073709551615\n"
    )
    finding = one(mlx5, "memlock")
    assert finding.subject == "unit slurmd.service"
    assert "systemctl edit slurmd.service" in finding.action


def test_a_job_that_runs_with_too_little(mlx5):
    mlx5.process(4711, {}, limit="67108864")
    mlx5.process(4712, {}, limit="65536", maps="libc.so.6")
    finding = one(mlx5, "memlock")
    assert finding.subject == "process 4711 (python)"
    assert finding.severity is Severity.WARNING, "64 MiB: enough to begin with"


@pytest.mark.parametrize("before", [9 << 20, (256 << 10) - 7])
def test_a_job_with_very_many_mappings_is_one(mlx5, before):
    """Libraries are the last ones; a job on GPUs may have 100,000 mappings before them."""
    row = "7f00-7f01 rw-p 0 0:0 0\n"
    many = row * (before // len(row)) + "x" * (before % len(row))
    mlx5.process(4711, {}, limit="67108864")
    mlx5.write("proc/4711/maps", many + "libnccl.so.2\n")
    assert one(mlx5, "memlock").subject == "process 4711 (python)"


def test_a_file_that_is_cut_short_is_named(tmp_path):
    tree = Tree(tmp_path)
    (tmp_path / "dev").write_text("a" * MAX_BYTES)
    assert (len(tree.read("dev")), tree.unexamined) == (MAX_BYTES, {})
    (tmp_path / "dev").write_text("a" * (MAX_BYTES + 1))
    assert len(tree.read("dev")) == MAX_BYTES
    assert tree.unexamined == {"the rest of dev": f"it has more than {MAX_BYTES} bytes"}


def test_cap_ipc_lock_of_the_initial_user_namespace_exempts(mlx5):
    mlx5.process(4711, {}, limit="65536", capabilities=1 << 14)
    assert seen(mlx5.findings("memlock")) == []
    mlx5.write("proc/4711/uid_map", "         0     100000      65536\n")
    assert [f.subject for f in mlx5.findings("memlock")] == ["process 4711 (python)"]


def test_without_verbs_the_limit_is_a_note(tmp_path):
    host = Host(tmp_path / "root")
    host.write("proc/self/limits", "Max locked memory         8388608   8388608   bytes     \n")
    assert one(host, "memlock").severity is Severity.NOTE


@given(st.text())
def test_limits_of_any_text_are_a_number_or_refused(text):
    try:
        found = limits.locked_limit(text)
    except (ValueError, IndexError):
        return
    assert found is None or isinstance(found, int)


# ACS: #214, #660, #928


def test_acs_of_a_switch_port_above_a_nic_with_gpus(mlx5):
    mlx5.acs("0000:17:00.0", "1d")
    mlx5.acs("0000:17:02.0", "1d")  # above the GPU alone
    finding = one(mlx5, "acs")
    assert finding.severity is Severity.WARNING
    assert finding.detail == (
        "0000:17:00.0 (request redirect, completion redirect), above 0000:18:00.0",
    )
    assert "LOC_PROT_ERR" in finding.seen
    assert "setpci" in finding.action


def test_source_validation_alone_redirects_nothing(mlx5):
    mlx5.acs("0000:17:00.0", "1")
    assert seen(mlx5.findings("acs")) == []


def test_the_root_port_is_found_once_for_both_nics(mlx5):
    mlx5.acs("0000:15:01.0", "4")
    assert one(mlx5, "acs").detail == (
        "0000:15:01.0 (request redirect), above 0000:18:00.0, 0000:19:00.0",
    )


def test_without_root_the_configuration_space_is_short_and_that_is_said(mlx5):
    mlx5.path("sys/bus/pci/devices/0000:17:00.0/config").write_bytes(bytes(64))
    facts = mlx5.facts()
    assert "0000:17:00.0" not in [bridge.address for bridge in facts.bridges]
    assert facts.unexamined["ACS of bridge 0000:17:00.0"] == (
        "64 bytes of configuration space, not 4096 (root may read it)"
    )


@pytest.mark.parametrize(("control", "found"), [("none", None), ("0", 0), ("1d", 0x1D)])
def test_the_control_register(control, found):
    assert acs_control(config_space(control)) == found


@given(st.binary(max_size=600), st.integers(0, 64))
def test_any_configuration_space_is_parsed_or_refused(data, at):
    space = bytearray(4096)
    space[0x100 + at : 0x100 + at + len(data)] = data
    try:
        found = acs_control(bytes(space[:4096]))
    except ConfigSpaceError:
        return
    assert found is None or 0 <= found <= 0xFFFF


def test_reserved_bits_of_a_capabilitys_address_are_passed_over():
    space = bytearray(config_space("1d"))
    space[0x100:0x104] = (0x0001 | 0x14B << 20).to_bytes(4, "little")
    assert acs_control(bytes(space)) == 0x1D


def test_a_list_of_capabilities_that_goes_round_is_refused():
    space = bytearray(config_space("none"))
    space[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    with pytest.raises(ConfigSpaceError, match="damaged"):
        acs_control(bytes(space))


# GPU memory


def test_gpus_without_any_way_for_the_nic(mlx5):
    mlx5.path("sys/module/nvidia_peermem/version").unlink()
    finding = one(mlx5, "gpu-memory")
    assert "closed NVIDIA driver exports no dmabuf" in finding.seen
    assert "modprobe nvidia_peermem" in finding.action
    mlx5.write("proc/driver/nvidia/version",
               "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15\n")  # fmt: skip
    assert seen(mlx5.findings("gpu-memory")) == [], "dmabuf"
    mlx5.write("proc/sys/kernel/osrelease", "5.4.0-1-generic\n")
    assert "older than 5.12" in one(mlx5, "gpu-memory").seen


def test_gpus_without_their_driver(mlx5):
    mlx5.path("sys/module/nvidia_peermem/version").unlink()
    mlx5.path("proc/driver/nvidia/version").unlink()
    assert "driver is not loaded" in one(mlx5, "gpu-memory").seen


# MTU


@pytest.mark.parametrize(
    ("mtu", "rdma"), [(1500, 1024), (4200, 4096), (4191, 2048), (9000, 4096), (300, 0), (0, 0)]
)
def test_the_rdma_mtu_of_an_interface(mtu, rdma):
    assert roce_mtu(mtu) == rdma


def test_rails_of_different_mtus(mlx5):
    mlx5.write("sys/class/net/rail1/mtu", "1500")
    found = mlx5.findings("mtu")
    assert (found[0].severity, found[0].detail) == (
        Severity.WARNING, ("1500: rail1", "9000: rail0"),
    )  # fmt: skip
    assert "allows an RDMA MTU of 1024" in found[1].seen


def test_a_port_that_uses_less_than_its_interface_allows(mlx5):
    mlx5.machine.children["fabricd.doctor.verbs_query"] = verbs_answer(
        mlx5_0=(1024, 4096), mlx5_1=(4096, 4096)
    )
    finding = one(mlx5, "mtu")
    assert (finding.subject, finding.severity) == ("mlx5_0/1", Severity.WARNING)
    assert "RDMA MTU of 1024; its interface allows 4096" in finding.seen


def test_an_infiniband_port_below_what_it_can(tmp_path):
    host = Host(tmp_path / "root", "mlx5_ib")
    host.machine.children["fabricd.doctor.verbs_query"] = verbs_answer(mlx5_0=(2048, 4096))
    assert "subnet manager" in one(host, "mtu").action


# Bonds: #2136, #2150


def test_a_bond_and_its_members_are_not_counted_twice(mlx5):
    mlx5.bond("bond0", ["rail0", "rail1"])
    mlx5.config("bond0", "rail0", "rail1")
    findings = mlx5.findings("bonds")
    assert [f.severity for f in findings] == [Severity.CRITICAL, Severity.WARNING]
    assert findings[0].seen == "bond0 and its members rail0, rail1 are all rails."
    assert "RoCE LAG is off" in findings[1].seen


def test_members_of_a_bond_as_rails(mlx5):
    mlx5.bond("bond0", ["rail0", "rail1"])
    assert "belong to bond0 and are rails of their own" in one(mlx5, "bonds").seen


def test_a_bond_that_has_the_verbs_port_is_one_rail(mlx5):
    mlx5.bond("bond0", ["rail0", "rail1"])
    mlx5.config("bond0")
    for device in ("mlx5_0", "mlx5_1"):
        for index in range(4):
            mlx5.write(f"sys/class/infiniband/{device}/ports/1/gid_attrs/ndevs/{index}", "bond0")
    assert seen(mlx5.findings("bonds")) == []


# Addresses


def test_an_address_twice(mlx5):
    mlx5.addresses({"rail0": "10.0.0.1/24", "rail1": "10.0.0.1/32", "lo": "127.0.0.1/8"})
    finding = one(mlx5, "addresses")
    assert (finding.subject, finding.severity) == ("10.0.0.1", Severity.CRITICAL)
    assert "rail0, rail1" in finding.seen


def shared(host, **sysctls):
    host.addresses({"rail0": "10.0.0.1/16", "rail1": "10.0.1.1/16"})
    for key, value in sysctls.items():
        host.sysctl("all", key, value)


def test_rails_in_one_subnet_that_answer_arp_for_each_other(mlx5):
    shared(mlx5)
    arp, routes = mlx5.findings("addresses")
    assert "answer ARP for any address" in arp.seen
    assert "no routing rule" in routes.seen
    assert routes.severity is Severity.WARNING


def test_rails_in_one_subnet_with_a_strict_reverse_path_filter(mlx5):
    shared(mlx5, arp_ignore=1, rp_filter=1)
    finding = one(mlx5, "addresses")
    assert finding.severity is Severity.CRITICAL
    assert "rp_filter=1 on rail0, rail1 drops" in finding.seen
    mlx5.sysctl("rail0", "rp_filter", 2)
    assert "rp_filter=1 on rail1 drops" in one(mlx5, "addresses").seen, "the larger one holds"


def test_rails_in_one_subnet_with_rules_of_their_own_are_well(mlx5):
    shared(mlx5, arp_ignore=2, rp_filter=1)
    mlx5.machine.tools["ip -j rule show"] = json.dumps(
        [{"priority": 0, "src": "all"}, {"priority": 9, "src": "10.0.0.1", "table": "100"},
         {"priority": 10, "src": "10.0.1.1", "table": "101"}]
    )  # fmt: skip
    assert seen(mlx5.findings("addresses")) == []


def test_point_to_point_subnets_share_nothing(mlx5):
    mlx5.addresses({"rail0": "10.0.0.0/31", "rail1": "10.0.0.1/31"})
    assert seen(mlx5.findings("addresses")) == []


# Firewall


def ruleset(*rules, policy="accept"):
    chain = {"family": "inet", "table": "filter", "name": "input", "hook": "input",
             "type": "filter", "prio": 0, "policy": policy}  # fmt: skip
    items = [{"metainfo": {"version": "1.0.6"}}, {"chain": chain}]
    items += [
        {"rule": {"family": "inet", "table": "filter", "chain": "input", "expr": expr}}
        for expr in rules
    ]
    return json.dumps({"nftables": items})


def match(right, protocol="udp"):
    left = {"payload": {"protocol": protocol, "field": "dport"}}
    return {"match": {"op": "==", "left": left, "right": right}}


@pytest.mark.parametrize(
    "right", [4791, {"set": [53, 4791]}, {"range": [4000, 5000]}, {"set": [{"range": [1, 9999]}]}]
)
def test_a_rule_that_drops_roce_is_critical_for_soft_roce(tmp_path, right):
    host = Host(tmp_path / "root", "rxe")
    host.machine.tools["nft -j list ruleset"] = ruleset([match(right), {"drop": None}])
    finding = one(host, "firewall")
    assert finding.severity is Severity.CRITICAL
    assert finding.detail == ("inet filter input",)


def test_hardware_roce_passes_netfilter_by(mlx5):
    mlx5.machine.tools["nft -j list ruleset"] = ruleset([match(4791), {"reject": None}])
    assert one(mlx5, "firewall").severity is Severity.NOTE


def test_input_that_is_dropped_by_default(tmp_path):
    host = Host(tmp_path / "root", "rxe")
    host.machine.tools["nft -j list ruleset"] = ruleset(
        [match(22, "tcp"), {"accept": None}], policy="drop"
    )
    assert "by default" in one(host, "firewall").seen
    host.machine.tools["nft -j list ruleset"] = ruleset(
        [match(4791), {"accept": None}], policy="drop"
    )
    assert seen(host.findings("firewall")) == []


def test_rules_that_may_not_be_listed_are_named(mlx5):
    del mlx5.machine.tools["nft -j list ruleset"]
    assert "nft is not installed" in mlx5.facts().unexamined["firewall rules"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(["nftables", "rule", "chain", "expr", "match", "left", "right", "payload",
                         "set", "range", "op", "hook", "policy", "drop", "field"]),
        inner, max_size=4,
    ),
    max_leaves=30,
)  # fmt: skip


@given(JSON)
def test_any_json_in_the_place_of_a_ruleset_is_parsed_or_refused(document):
    try:
        found = firewall.parse(json.dumps({"nftables": document}))
    except ValueError:
        return
    assert isinstance(found.blocking, tuple)

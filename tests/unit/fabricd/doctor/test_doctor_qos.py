"""PFC, DSCP and traffic class (#2383, #306, #378), of what mlnx_qos and dcb print."""

import pytest
from host_trees import Host, seen
from hypothesis import given
from hypothesis import strategies as st

from fabricd.doctor.finding import Severity
from fabricd.doctor.gather import qos

MLNX = """DCBX mode: OS controlled
Priority trust state: {trust}
dscp2prio mapping:
\tprio:0 dscp:07,06,05,04,03,02,01,00,
\tprio:1 dscp:15,14,13,12,11,10,09,08,
\tprio:2 dscp:23,22,21,20,19,18,17,16,
\tprio:3 dscp:31,30,29,28,27,26,25,24,
\tprio:4 dscp:39,38,37,36,35,34,33,32,
\tprio:5 dscp:47,46,45,44,43,42,41,40,
\tprio:6 dscp:55,54,53,52,51,50,49,48,
\tprio:7 dscp:63,62,61,60,59,58,57,56,
default priority:
Receive buffer size (bytes): 19872,243072,0,0,0,0,0,0,max_buffer_size=1027728
Cable len: 7
PFC configuration:
\tpriority    0   1   2   3   4   5   6   7
\tenabled     {pfc}
\tbuffer      0   0   0   1   0   0   0   0
tc: 0 ratelimit: unlimited, tsa: vendor
\t priority:  1
"""
PRIORITY_3 = "0   0   0   1   0   0   0   0"
NONE = "0   0   0   0   0   0   0   0"
DCB_PFC = "pfc-cap 8 macsec-bypass off delay 0 \nprio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off \n"  # noqa: E501
DCB_APP = "dscp-prio 26:3 48:6 \nstream-port-prio 860:4 \n"


@pytest.fixture
def mlx5(tmp_path):
    host = Host(tmp_path / "root", "mlx5_roce")
    host.config("rail0", "rail1")
    told(host)
    return host


def told(host, rail="rail0", *, pfc=PRIORITY_3, trust="dscp"):
    for netdev in ("rail0", "rail1") if rail == "rail0" else (rail,):
        host.machine.tools[f"mlnx_qos -i {netdev}"] = MLNX.format(pfc=pfc, trust=trust)


def test_mlnx_qos():
    found = qos.of_mlnx_qos("rail0", MLNX.format(pfc=PRIORITY_3, trust="dscp"))
    assert found.pfc == (False, False, False, True, False, False, False, False)
    assert (found.trust, found.source) == ("dscp", "mlnx_qos")
    assert found.priority_of_dscp == {dscp: dscp // 8 for dscp in range(64)}


def test_dcb():
    found = qos.of_dcb("rail0", DCB_PFC, DCB_APP)
    assert found.pfc == (False, False, False, True, False, False, False, False)
    assert (found.trust, found.priority_of_dscp) == ("dscp", {26: 3, 48: 6})
    assert qos.of_dcb("rail0", DCB_PFC, "").trust == "pcp"


def test_traffic_in_the_lossless_class_is_well(mlx5):
    mlx5.environment = {"NCCL_IB_TC": "106"}  # DSCP 26, ECT(0)
    assert seen(mlx5.findings("qos")) == []
    mlx5.environment = {"NCCL_IB_TC": "0x68"}
    assert seen(mlx5.findings("qos")) == []


@pytest.mark.parametrize("variables", [{}, {"NCCL_IB_TC": "160"}])
def test_traffic_in_another_class_is_told_which_value_fits(mlx5, variables):
    """#2383, #306, #378: PFC is on for priority 3, and RoCE travels in another one."""
    mlx5.environment = variables
    first, second = mlx5.findings("qos")
    assert {first.subject, second.subject} == {"rail0", "rail1"}
    assert "PFC is off; it is on for priority 3" in first.seen
    assert first.action.startswith("Set NCCL_IB_TC=96,")
    assert ("is not set" in first.seen) == (not variables)


def test_of_a_job_that_runs(mlx5):
    mlx5.environment = {"NCCL_IB_TC": "96"}
    mlx5.process(4711, {"NCCL_IB_TC": "0"})
    mlx5.pids = (4711,)
    assert ["process 4711" in f.seen for f in mlx5.findings("qos")] == [True, True]


def test_a_traffic_class_that_the_nic_does_not_look_at(mlx5):
    told(mlx5, trust="pcp")
    mlx5.environment = {"NCCL_IB_TC": "96"}
    assert "--trust dscp" in mlx5.findings("qos")[0].action


def test_a_device_that_forces_a_traffic_class(mlx5):
    for device in ("mlx5_0", "mlx5_1"):
        mlx5.write(f"sys/class/infiniband/{device}/tc/1/traffic_class", "Global tclass=96\n")
    assert seen(mlx5.findings("qos")) == [], "without NCCL_IB_TC RoCE is lossless all the same"
    mlx5.environment = {"NCCL_IB_TC": "160"}
    assert [(f.subject, "has no effect" in f.seen) for f in mlx5.findings("qos")] == [
        ("rail0", True), ("rail1", True),
    ]  # fmt: skip
    mlx5.write("sys/class/infiniband/mlx5_0/tc/1/traffic_class", "tclass=7 sip=1.2.3.4\n")
    found = [f.seen for f in mlx5.findings("qos") if f.subject == "rail0"]
    assert ["PFC is off" in text for text in found] == [True], "a rule for one flow forces nothing"


@pytest.mark.parametrize("value", ["-1", "0", "fast"])
def test_values_without_a_class_do_not_fail(mlx5, value):
    mlx5.environment = {"NCCL_IB_TC": value}
    assert len(mlx5.findings("qos")) == (0 if value == "fast" else 2)


def test_rails_that_differ(mlx5):
    told(mlx5, "rail1", pfc=NONE)
    mlx5.environment = {"NCCL_IB_TC": "96"}
    differ, without = mlx5.findings("qos")
    assert differ.severity is Severity.WARNING
    assert differ.detail == (
        "rail0: PFC on for 3; trust dscp (mlnx_qos)",
        "rail1: PFC on for none; trust dscp (mlnx_qos)",
    )  # fmt: skip
    assert (without.subject, without.severity) == ("rail1", Severity.NOTE)


def test_dcb_is_asked_where_mlnx_qos_is_not_installed(mlx5):
    for rail in ("rail0", "rail1"):
        del mlx5.machine.tools[f"mlnx_qos -i {rail}"]
        mlx5.machine.tools[f"dcb pfc show dev {rail}"] = DCB_PFC
        mlx5.machine.tools[f"dcb -N app show dev {rail}"] = DCB_APP
    assert [f.subject for f in mlx5.findings("qos")] == ["rail0", "rail1"]
    del mlx5.machine.tools["dcb pfc show dev rail1"]
    assert mlx5.facts().unexamined["PFC and DSCP of rail1"] == (
        "mlnx_qos is not installed; dcb is not installed"
    )


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text_is_parsed_or_passed_over(first, second):
    for text in (first, "prio-pfc " + first, "PFC configuration:\n enabled " + first):
        qos.of_mlnx_qos("x", text)
        qos.of_dcb("x", text, second)

"""NCCL's variables that fight each other or the host."""

import re
from pathlib import Path

import pytest
from host_trees import Host, seen
from hypothesis import given
from hypothesis import strategies as st

from fabricd.doctor.checks.nccl_names import IB_NUMBERS, IB_WORDS, NameList, number_of
from fabricd.doctor.finding import Severity
from fabricd.doctor.gather.nccl import parse_file
from fabricd.doctor.process_scan import parse_environ, wanted

OURS = "/opt/fabricd/lib/libnccl-net-fabric.so"


@pytest.fixture
def mlx5(tmp_path):
    host = Host(tmp_path / "root", "mlx5_roce")
    host.config("rail0", "rail1")
    return host


def findings(host, **variables):
    host.environment = {name: str(value) for name, value in variables.items()}
    return host.findings("nccl-variables", "nccl-ib-variables")


def one(host, **variables):
    (finding,) = findings(host, **variables)
    assert finding.subject == "this environment"
    return finding


SOUND = (
    {},
    {"NCCL_NET_PLUGIN": OURS, "FABRIC_RUN_DIR": "/run/fabricd"},
    {"NCCL_NET_PLUGIN": OURS, "NCCL_NET": "fabric", "NCCL_SOCKET_IFNAME": "rail"},
    {"NCCL_NET_PLUGIN": OURS, "NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "mlx5"},
    {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1", "NCCL_IB_TIMEOUT": "22", "NCCL_IB_RETRY_CNT": "7"},
    {"NCCL_IB_HCA": "^mlx5_9", "NCCL_IB_TC": "0x68", "NCCL_IB_FIFO_TC": "104"},
    {"NCCL_IB_ADDR_FAMILY": "AF_INET", "NCCL_IB_ADDR_RANGE": "10.0.0.0/8"},
    {"NCCL_SOCKET_IFNAME": "=rail0,rail1", "NCCL_IB_GID_INDEX": "-1"},
    {"NCCL_PROTO": "Simple,LL"},
    {"NCCL_PROTO": "^LL,LL128;broadcast:Simple"},
)


@pytest.mark.parametrize("variables", SOUND)
def test_what_agrees_is_no_finding(mlx5, variables):
    assert seen(findings(mlx5, **variables)) == []


FIGHTS = (
    ({"NCCL_NET_PLUGIN": OURS, "NCCL_NET": "IB"}, Severity.CRITICAL, "not the plugin"),
    ({"NCCL_NET_PLUGIN": OURS, "NCCL_NET": "Socket"}, Severity.CRITICAL, "not the plugin"),
    ({"FABRIC_RUN_DIR": "/run/fabricd"}, Severity.WARNING, "NCCL_NET_PLUGIN is not set"),
    ({"FABRIC_JOB": "a", "NCCL_NET_PLUGIN": "none"}, Severity.WARNING, 'NCCL_NET_PLUGIN is "none"'),
    ({"FABRIC_JOB": "ä" * 32, "NCCL_NET_PLUGIN": OURS}, Severity.WARNING, "the rest is cut off"),
    ({"NCCL_NET_PLUGIN": "/x/libnccl-net-fabric.so"}, Severity.CRITICAL, "is not there"),
    ({"NCCL_NET_PLUGIN": "fabric"}, Severity.CRITICAL, "is not there"),
    ({"NCCL_NET_PLUGIN": OURS, "FABRIC_FAILOVER": "0"}, Severity.WARNING, "ends the job"),
    ({"NCCL_NET_PLUGIN": OURS, "NCCL_NET_FORCE_MERGE": "a,b"}, Severity.WARNING, "fuse NICs"),
    ({"NCCL_SOCKET_IFNAME": "ib"}, Severity.CRITICAL, "leaves no interface of eth0, lo, rail0"),
    ({"NCCL_SOCKET_IFNAME": "rail0"}, Severity.WARNING, "leaves out the rails rail1"),
    ({"NCCL_SOCKET_IFNAME": "eth0"}, Severity.WARNING, "none of which is a rail"),
    ({"NCCL_SOCKET_FAMILY": "ipv4"}, Severity.WARNING, "neither AF_INET nor AF_INET6"),
    ({"NCCL_PROTO": "LL128"}, Severity.CRITICAL, "half a line"),
    ({"NCCL_PROTO": "^Simple"}, Severity.CRITICAL, "half a line"),
    ({"NCCL_PROTO": "^LL128;allreduce:ll,ll128"}, Severity.CRITICAL, "half a line"),
    ({"NCCL_IB_DISABLE": "1"}, Severity.NOTE, "turns verbs off"),
    ({"NCCL_IB_DISABLE": "1", "NCCL_NET_PLUGIN": OURS}, Severity.NOTE, "turns verbs off"),
    ({"NCCL_IB_DISABLE": "1", "NCCL_NET_PLUGIN": OURS, "FABRIC_VERBS": "1"}, Severity.WARNING,
     "FABRIC_VERBS=1 has no effect"),
    ({"FABRIC_GPUDIRECT": "1", "NCCL_NET_PLUGIN": OURS}, Severity.WARNING,
     "FABRIC_GPUDIRECT=1 has no effect"),
    ({"FABRIC_VERBS": "0", "NCCL_NET_PLUGIN": OURS}, Severity.NOTE, "FABRIC_VERBS=0 turns verbs"),
    ({"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5"}, Severity.WARNING, "chooses among them"),
    ({"NCCL_IB_HCA": "mlx4_0"}, Severity.CRITICAL, "no RDMA port of this host (mlx5_0:1, "),
    ({"NCCL_IB_HCA": "=mlx5"}, Severity.CRITICAL, "no RDMA port"),
    ({"NCCL_IB_HCA": "mlx5_0:2"}, Severity.CRITICAL, "no RDMA port"),
    ({"NCCL_IB_HCA": "^mlx5"}, Severity.CRITICAL, "no RDMA port"),
    ({"NCCL_IB_HCA": "mlx5_0"}, Severity.WARNING, "leaves out the rails rail1"),
    ({"NCCL_IB_HCA": "^mlx5_1"}, Severity.WARNING, "leaves out the rails rail1"),
    ({"NCCL_IB_GID_INDEX": "3"}, Severity.WARNING, "GIDs move after a flap"),
    ({"NCCL_IB_GID_INDEX": "1"}, Severity.CRITICAL, "wrong on some"),
    ({"NCCL_IB_GID_INDEX": "2"}, Severity.CRITICAL, "wrong on some"),
    ({"NCCL_IB_GID_INDEX": "9"}, Severity.CRITICAL, "wrong on some"),
    ({"NCCL_IB_GID_INDEX": "3", "NCCL_IB_ADDR_FAMILY": "AF_INET"}, Severity.WARNING,
     "NCCL_IB_ADDR_FAMILY is not looked at then"),
    ({"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, Severity.CRITICAL, "mlx5_0/1, mlx5_1/1 has no such GID"),
    ({"NCCL_IB_ADDR_FAMILY": "inet6"}, Severity.WARNING, "AF_INET holds"),
    ({"NCCL_IB_ADDR_RANGE": "10.0.0.0/24"}, Severity.CRITICAL, "holds no GID of mlx5_1/1"),
    ({"NCCL_IB_ADDR_RANGE": "fd00::/8"}, Severity.WARNING, "the range is ignored"),
    ({"NCCL_IB_ADDR_RANGE": "10.0/33"}, Severity.WARNING, "is no subnet"),
    ({"NCCL_IB_ROCE_VERSION_NUM": "1"}, Severity.WARNING, "no router forwards RoCE v1"),
    ({"NCCL_IB_TIMEOUT": "0"}, Severity.CRITICAL, "waits for ever"),
    ({"NCCL_IB_TIMEOUT": "8"}, Severity.WARNING, "give up after 8.39 ms"),
    ({"NCCL_IB_TIMEOUT": "24"}, Severity.WARNING, "give up after 550 s"),
    ({"NCCL_IB_TIMEOUT": "32"}, Severity.WARNING, "outside 0 to 31"),
    ({"NCCL_IB_TIMEOUT": "20s"}, Severity.WARNING, "leading digits"),
    ({"NCCL_IB_RETRY_CNT": "0"}, Severity.WARNING, "one packet that is lost"),
    ({"NCCL_IB_RETRY_CNT": "9"}, Severity.WARNING, "outside 0 to 7"),
    ({"NCCL_IB_FIFO_TC": "104"}, Severity.WARNING, "another class than the data"),
    ({"NCCL_IB_HCAS": "mlx5"}, Severity.WARNING, "no variable of NCCL"),
    ({"NCCL_NET_GDR_LEVEL": "LOC"}, Severity.WARNING, "turns GPUDirect off"),
    ({"NCCL_GDR_FLUSH_DISABLE": "1"}, Severity.WARNING, "before they have arrived"),
    ({"NCCL_NET_PLUGIN": OURS, "NCCL_IB_RESILIENCY_PORT_FAILOVER": "1"}, Severity.NOTE,
     "the plugin does not read them"),
    ({"NCCL_NET_PLUGIN": OURS, "NCCL_IB_MERGE_NICS": "1"}, Severity.NOTE, "merges no NICs"),
)  # fmt: skip


@pytest.mark.parametrize(("variables", "severity", "words"), FIGHTS)
def test_what_fights_is_one_finding_that_says_so(mlx5, variables, severity, words):
    finding = one(mlx5, **variables)
    assert (words in finding.seen, finding.severity) == (True, severity), finding


def test_a_misspelt_name_is_told_the_right_one(mlx5):
    assert one(mlx5, NCCL_IB_TIME_OUT="20").action == "Did you mean NCCL_IB_TIMEOUT?"


def test_a_pinned_gid_index_says_what_is_wrong_on_which_port(mlx5):
    mlx5.empty("mlx5_1", 1, 3, 1)
    mlx5.empty("mlx5_1", 1, 2, 1)
    assert one(mlx5, NCCL_IB_GID_INDEX="3").detail == ("mlx5_1/1: entry 3 is empty",)
    assert one(mlx5, NCCL_IB_GID_INDEX="2").detail == (
        "mlx5_0/1: entry 2 is IB/RoCE v1", "mlx5_1/1: entry 2 is empty",
    )  # fmt: skip
    details = one(mlx5, NCCL_IB_GID_INDEX="1").detail
    assert details[0].startswith("mlx5_0/1: entry 1 is link-local (fe80:")


def test_dmabuf_off_without_a_peer_memory_module(mlx5):
    mlx5.path("sys/module/nvidia_peermem/version").unlink()
    assert "no way is left" in one(mlx5, NCCL_DMABUF_ENABLE="0").seen


def test_an_interface_list_that_takes_a_bond_and_its_members(mlx5):
    mlx5.bond("railbond", ["rail0"])
    assert "takes railbond and its members rail0" in one(mlx5, NCCL_SOCKET_IFNAME="rail").seen


def test_a_port_that_is_named_and_down(mlx5):
    mlx5.port("mlx5_1", 1, "Ethernet", "1:DOWN", "400", "Gb/sec")
    assert "not ACTIVE: mlx5_1/1" in one(mlx5, NCCL_IB_HCA="mlx5_0,mlx5_1").seen


def test_by_name_a_library_in_the_search_path_is_found(mlx5):
    assert findings(mlx5, NCCL_NET_PLUGIN="fabric", LD_LIBRARY_PATH="/x:/opt/fabricd/lib") == ()


def test_the_configuration_files_of_nccl_count_where_the_environment_says_nothing(mlx5):
    mlx5.write("etc/nccl.conf", "# site\nNCCL_IB_TIMEOUT=8\nNCCL_IB_TC=96\n")
    mlx5.write("home/u/.nccl.conf", "NCCL_IB_TIMEOUT=22\n")
    assert findings(mlx5, HOME="/home/u") == (), "the user's file comes first"
    (timeout,) = findings(mlx5)
    assert "NCCL_IB_TIMEOUT=8" in timeout.seen
    finding = one(mlx5, HOME="/home/u", NCCL_IB_TC="104")
    assert finding.detail == ("NCCL_IB_TC: 104 here, 96 in /home/u/.nccl.conf",)


def test_processes_whose_variables_differ(mlx5):
    mlx5.process(21, {"NCCL_IB_TC": "96", "FABRIC_INCARNATION": "1", "PATH": "/bin"})
    mlx5.process(22, {"FABRIC_INCARNATION": "2"})
    mlx5.pids = (21, 22)
    (finding,) = mlx5.findings("nccl-variables")
    assert finding.detail == ("NCCL_IB_TC: 96 (process 21), unset (process 22)",)


def test_a_process_in_a_container_is_looked_at_with_its_own_files(mlx5):
    mlx5.process(21, {"NCCL_NET_PLUGIN": OURS})
    mlx5.pids = (21,)
    (finding,) = mlx5.findings("nccl-variables")
    assert (finding.subject, finding.severity) == ("process 21", Severity.CRITICAL)
    mlx5.write(f"proc/21/root{OURS}", b"")
    assert mlx5.findings("nccl-variables") == ()


def test_a_process_that_is_not_there_is_named(mlx5):
    mlx5.pids = (99,)
    assert mlx5.facts().unexamined["environment of process 99"] == "No such file or directory"


@pytest.mark.parametrize(
    ("text", "name", "port", "taken"),
    [
        ("mlx5", "mlx5_0", 1, True), ("mlx5_1", "mlx5_10", 1, True),
        ("=mlx5_1", "mlx5_10", 1, False),
        ("^mlx5_0", "mlx5_0", 1, False), ("^mlx5_0", "mlx5_1", 1, True),
        ("^=mlx5_0:1", "mlx5_0", 2, True), ("mlx5_0:2", "mlx5_0", 1, False), ("", "x", 1, False),
    ],
)  # fmt: skip
def test_device_lists_are_nccls(text, name, port, taken):
    assert NameList.parse(text).selects(name, port) is taken


@pytest.mark.parametrize(
    ("text", "number"),
    [("22", 22), ("0x16", 22), ("026", 22), ("-1", -1), (" 7 ", 7), ("20s", None), ("", None),
     ("08", None), ("1e3", None), ("٣", None)],
)  # fmt: skip
def test_numbers_are_strtolls(text, number):
    assert number_of(text) == number


@given(st.binary())
def test_any_environ_is_parsed(data):
    assert all(isinstance(value, str) for value in parse_environ(data).values())


def test_only_variables_about_nccl_leave_the_child():
    assert wanted({"NCCL_IB_TC": "1", "HF_TOKEN": "secret", "HOME": "/root"}) == {
        "NCCL_IB_TC": "1", "HOME": "/root",
    }  # fmt: skip


def test_the_first_of_a_name_counts():
    assert parse_environ(b"A=1\0A=2\0junk\0B=\0") == {"A": "1", "B": ""}


@pytest.mark.patient
@given(st.text())
def test_any_configuration_file_is_parsed(text):
    assert all(name.startswith(("NCCL_", "FABRIC_", "RCCL_")) for name in parse_file(text))


def test_only_nccls_names_are_taken_from_a_file_that_may_be_any():
    assert parse_file("root:x=1\n# NCCL_X=1\nNCCL_IB_TC=96\nTOKEN=a\nNCCL_IB_TC=8") == {
        "NCCL_IB_TC": "96"
    }


@given(
    st.dictionaries(
        st.sampled_from(["NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_IB_GID_INDEX", "NCCL_IB_TC",
                         "NCCL_IB_TIMEOUT", "NCCL_IB_ADDR_RANGE", "NCCL_NET_PLUGIN", "NCCL_NET",
                         "NCCL_IB_ADDR_FAMILY", "NCCL_IB_FIFO_TC", "NCCL_IB_RETRY_CNT"]),
        st.text(alphabet=st.characters(exclude_characters="\0"), max_size=12),
    )
)  # fmt: skip
def test_any_values_make_findings_and_no_failure(tmp_path_factory, variables):
    host = _SHARED.get("host")
    if host is None:
        host = _SHARED["host"] = Host(tmp_path_factory.mktemp("any") / "root", "mlx5_roce")
        host.config("rail0", "rail1")
    findings(host, **variables)


_SHARED = {}


DOCS = Path(__file__).resolve().parents[4] / "docs"


def documented():
    """Variable → what docs/reference/nccl-ib-variables.md says that the plugin makes of it."""
    text = (DOCS / "reference/nccl-ib-variables.md").read_text()
    rows = re.findall(r"^\| `(NCCL_IB_\w+)` \| [^|]+ \| ([^|]+) \|", text, re.MULTILINE)
    assert len(rows) == len(dict(rows)), "a variable has two rows"
    return dict(rows)


def test_each_variable_that_is_checked_is_documented():
    assert documented().keys() == IB_NUMBERS.keys() | IB_WORDS


def test_the_variables_that_the_plugin_reads_are_documented_so():
    text = (DOCS / "reference/plugin.md").read_text()
    names = re.findall(r"^\| `(NCCL_IB_\w+)`", text, re.MULTILINE)
    assert names
    assert [name for name in names if not documented()[name].startswith("read")] == []

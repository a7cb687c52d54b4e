"""The net plugin contract across four hosts: on sound rails, and with two rails flapping."""

import json
from contextlib import ExitStack

import pytest

from lab.faults.flap import Flap

HOSTS, RAILS = 4, 2
FLAPS = 1_000_000
"""More than any run takes: the rails flap until its end."""
LIMIT_S = 560


def play(lab, tmp_path, plugin, version, *args):
    """Every host's report of one run of all cases, a rank a host."""
    program = lab.binaries.plugin.with_name("fabric-conformance")
    ranks = []
    for rank, node in enumerate(lab.nodes):
        command = [str(program), "--plugin", str(plugin), "--abi", version, "--json"]
        command += ["--rank", str(rank), "--ranks", str(HOSTS), "--timeout", "90", *args]
        command += ["--deadline", str(LIMIT_S), "--rendezvous", f"file:{tmp_path / 'ranks'}"]
        env = {"NCCL_SOCKET_IFNAME": "rail"}
        with (
            (tmp_path / f"{rank}.json").open("w") as out,
            (tmp_path / f"{rank}.log").open("w") as err,
        ):
            ranks.append(node.popen(command, env=env, stdout=out, stderr=err))
    for process in ranks:
        process.wait(LIMIT_S + 120)
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(HOSTS)]


def assert_all_passed(reports):
    for rank, report in enumerate(reports):
        bad = [case for case in report["cases"] if case["outcome"] != "ok"]
        assert not bad, (rank, bad)
        assert report["passed"] >= 30


@pytest.fixture(scope="module")
def lab(module_cluster):
    return module_cluster(hosts=HOSTS, rails=RAILS)


@pytest.mark.parametrize("name", [
    "libnccl-net-fabric.so", pytest.param("libnccl-net-plain.so", marks=pytest.mark.nightly),
])  # fmt: skip
def test_over_sound_rails(lab, tmp_path, name):
    plugin = lab.binaries.plugin.with_name(name)
    assert_all_passed(play(lab, tmp_path, plugin, "v12"))


VERSIONS = ["v12", *(pytest.param(f"v{v}", marks=pytest.mark.nightly) for v in (8, 9, 10, 11))]


@pytest.mark.parametrize("version", VERSIONS)
def test_while_two_rails_flap(lab, tmp_path, version):
    """All comms are at home on rail0: it flaps on one host, rail1 on another."""
    with ExitStack() as stack:
        flaps = [
            stack.enter_context(lab.inject(Flap(target, period_ms, FLAPS)))
            for target, period_ms in (("h0:rail0", 700.0), ("h2:rail1", 900.0))
        ]
        reports = play(lab, tmp_path, lab.binaries.plugin, version)
        assert all(flap.running for flap in flaps), "the rails did not flap to the end"
    assert_all_passed(reports)
    node = lab.nodes[0]
    assert node.carrier(0), "the fault is still in force"

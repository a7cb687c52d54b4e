"""`fabricctl doctor` and `plugin check --hosts` in hosts of a lab: real addresses and libraries."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.node import REPO

LIBRARY = Path("nccl_plugin/libnccl-net-fabric.so")
SLOW_S = 120


@pytest.fixture
def fresh(cluster):
    lab = cluster(hosts=2, rails=2)
    for node in lab.nodes:
        node.write_config()
    return lab


def library():
    path = REPO / "build" / os.environ.get("FABRIC_BUILD", "release") / LIBRARY
    if not path.exists():
        pytest.fail("the plugin is not built: ./run build")
    if b"__asan_init" in path.read_bytes() or b"__tsan_init" in path.read_bytes():
        pytest.skip("a sanitizer's library needs its runtime")
    return path


def doctor(node):
    done = node.run(
        [sys.executable, "-m", "fabricd.cli", "doctor", "--json", "--config", node.config_path],
        check=False, timeout=SLOW_S,
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["code"] == done.returncode
    assert not [what for what in document["unexamined"] if what.startswith("check ")]
    return document


def of_addresses(document):
    return [
        (x["severity"], x["subject"]) for x in document["findings"] if x["check"] == "addresses"
    ]


def test_the_doctor_sees_the_addresses_of_its_own_namespace(fresh):
    node = fresh.nodes[0]
    assert "IP addresses" not in doctor(node)["unexamined"]
    assert of_addresses(doctor(node)) == []
    again = node.address(0)
    node.run(["ip", "address", "add", f"{again}/32", "dev", "rail1"])
    assert of_addresses(doctor(node)) == [("critical", again)]
    assert of_addresses(doctor(fresh.nodes[1])) == []
    node.run(["ip", "link", "set", "rail1", "mtu", "1400"])
    assert [x["detail"] for x in doctor(node)["findings"] if x["check"] == "mtu"] == [
        ["1400: rail1", "1500: rail0"]
    ]


def test_hosts_that_differ_are_refused(fresh, tmp_path):
    """Each is reached by a command of its own, as ssh or srun would; one has an old library."""
    ours = library()
    old = tmp_path / "old" / LIBRARY.name
    old.parent.mkdir()
    wire = re.search(rb", wire (\d) to (\d), ", ours.read_bytes())
    newest = int(wire[2])
    older = wire[0].replace(b"to " + wire[2], b"to %d" % (newest - 1))
    old.write_bytes(ours.read_bytes().replace(wire[0], older))
    old.chmod(0o755)

    def reach(name, node, plugin):
        script = tmp_path / name
        script.write_text(
            f"#!/bin/sh\necho Welcome to {name}\n"
            f'exec ip netns exec {node.ns} env NCCL_NET_PLUGIN={plugin} "$@" '
            f"--config {node.config_path}\n"
        )
        script.chmod(0o755)

    def check(*hosts, more=()):
        done = subprocess.run(
            [sys.executable, "-m", "fabricd.cli", "plugin", "check", "--json", "--hosts",
             ",".join(hosts), "--via", f"{tmp_path}/{{host}}", "--command",
             f"{sys.executable} -m fabricd.cli", "--timeout", f"{SLOW_S}s", *more],
            capture_output=True, text=True, timeout=3 * SLOW_S, check=False,
            env=dict(os.environ) | {"PYTHONPATH": str(REPO)},
        )  # fmt: skip
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    for name, node, plugin in (("h0", fresh.nodes[0], ours), ("h1", fresh.nodes[1], ours),
                               ("h2", fresh.nodes[1], old),
                               ("h3", fresh.nodes[1], tmp_path / "none.so")):  # fmt: skip
        reach(name, node, plugin)
    status, document = check("h0", "h1")
    assert (status, document["findings"]) == (0, [])
    assert [host["rails"] for host in document["hosts"].values()] == [["rail0", "rail1"]] * 2
    assert [host["plugin"]["tables"] for host in document["hosts"].values()] == [
        [8, 9, 10, 11, 12]
    ] * 2
    status, document = check("h0", "h1", "h2")
    assert status == 2
    assert f"all know {newest - 1}" in document["findings"][0]["seen"]
    lowest = int(wire[1])
    assert document["findings"][0]["detail"] == [
        f"wire {lowest} to {newest}: h0, h1", f"wire {lowest} to {newest - 1}: h2",
    ]  # fmt: skip
    assert check("h0", "h1", "h2", more=["--allow-mixed"])[0] == 1
    status, document = check("h0", "h3", "h4")
    assert status == 2
    assert "no plugin library; looked for" in document["findings"][0]["seen"]
    assert "No such file" in document["hosts"]["h4"]["problem"]

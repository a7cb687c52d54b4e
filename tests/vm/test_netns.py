"""Rails that belong to a pod: prober and daemon enter its network namespace.

Source: docs/operate/containers.md. tests/lab/test_containers.py shows what fabricd is to a pod.
"""

import json

import pytest
from installed import CONTAINERS, KEY, LONG, SLOW_START, ask, follow, journal, show, until

from lab.vm import pair

pytestmark = pytest.mark.nightly  # four more starts of Python, 20 s each under emulation
NAME = "cni-7"  # as CNI names them; "-" has a meaning of its own in names of units
UNIT = r"cni\x2d7"
RUN = f"/run/fabricd-netns/{NAME}"
SOCKET = f"{RUN}/ctl.sock"
CONFIG = """
[host]
name = "{name}"
realtime = false

[paths]
run_dir = "{run}"
state_dir = "/var/lib/fabricd-netns/{netns}"

[probe]
link_interval_ms = 100
clock_train_hz = 0
cross_rail_peers = 0

[hold]
hold_down_s = 1.0
probation_s = 2.0

[[links]]
netdev = "rail1"
rail = 1

[[peers]]
host = "{peer}"
addresses = [{{ rail = 1, address = "{address}" }}]
"""


def links(vm):
    return {link["netdev"]: link for link in ask(vm, "links", socket=SOCKET) or []}


def wait_state(vm, *wanted):
    def right():
        return links(vm).get("rail1", {}).get("state") in wanted

    try:
        until(right, LONG, f"{vm.name}: rail1 {wanted}")
    except AssertionError as error:
        logs = "".join(
            journal(vm, f"{unit}@{UNIT}") for unit in ("fabric-netns", "fabricd", "fabric-prober")
        )
        raise AssertionError(f"{error}; is {links(vm)}\n{logs}") from None


def devices(vm, root=""):
    return set(vm.run("ls", f"{root}/sys/class/net").check().out.split())


@pytest.fixture(scope="module")
def pods(machines):
    """A namespace with rail1 on both machines, and what was installed for it."""
    both = (machines.alpha, machines.beta)
    for host, vm in enumerate(both):
        vm.run("systemd-sysusers", "/opt/fabricd/share/fabricd/systemd/sysusers.d/fabricd.conf")
        vm.write("/etc/fabricd/probe.key", KEY, 0o600)
        follow(vm, "link")
        follow(vm, "netns-units", doc=CONTAINERS)
        for unit in ("fabricd", "fabric-clock"):
            vm.write(f"/etc/systemd/system/{unit}@.service.d/emulated.conf", SLOW_START)
        text = CONFIG.format(
            name=vm.name, peer=both[1 - host].name, address=pair.address(1 - host, 1), run=RUN,
            netns=NAME,
        )  # fmt: skip
        vm.write(f"/etc/fabricd/netns/{NAME}/fabricd.toml", text)
        own = f"{pair.address(host, 1)}/24"
        for line in (
            f"ip netns add {NAME}", f"ip link set rail1 netns {NAME}",
            f"ip -n {NAME} link set lo up", f"ip -n {NAME} link set rail1 up",
            f"ip -n {NAME} addr add {own} dev rail1",
        ):  # fmt: skip
            vm.run(*line.split()).check()
    for vm in both:
        # An emulated core has time for little else.
        vm.run("systemctl", "mask", f"fabric-clock@{UNIT}.service").check()
        follow(vm, "netns", doc=CONTAINERS, NAME=NAME)
    yield machines
    machines.set_cable(1, up=True)
    for host, vm in enumerate(both):
        vm.run("systemctl", "stop", f"fabric-netns@{UNIT}.service", timeout=LONG)
        vm.run("ip", "netns", "del", NAME)
        vm.run("systemctl", "unmask", f"fabric-clock@{UNIT}.service")
        until(lambda vm=vm: "rail1" in devices(vm), LONG, "the NIC is the host's again")
        vm.run("ip", "link", "set", "rail1", "up").check()
        vm.run("ip", "addr", "add", f"{pair.address(host, 1)}/24", "dev", "rail1").check()
        if "rxe0" in vm.run("rdma", "link").out:  # other tests' of this session; it went with rail1
            vm.run("rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "rail1").check()
        vm.run("sh", "-c", "rm -rf /etc/fabricd /etc/systemd/system/fabric*@.service*").check()
        vm.run("systemctl", "daemon-reload").check()


def test_they_see_the_pods_rail_and_its_peer_and_no_other_device(pods):
    for vm in (pods.alpha, pods.beta):
        wait_state(vm, "up")
    vm = pods.alpha
    until(lambda: links(vm)["rail1"]["probes"]["received"] > 0, LONG, "probes of the peer's pod")
    assert set(links(vm)) == {"rail1"}
    assert "rail1" not in devices(vm)
    for unit in ("fabricd", "fabric-prober"):
        seen = show(vm, f"{unit}@{UNIT}", "MainPID", "ActiveState", "NRestarts")
        assert (seen["ActiveState"], seen["NRestarts"]) == ("active", "0")
        pid = seen["MainPID"]
        assert vm.run("ip", "netns", "identify", pid).check().out.strip() == NAME
        assert devices(vm, f"/proc/{pid}/root") == {"lo", "rail1"}
        assert vm.run("stat", "-c", "%U", f"/proc/{pid}").check().out.strip() == "fabricd"
    # What the pod is shown as /run/fabricd.
    assert vm.run("test", "-s", f"{RUN}/steer").rc == 0
    shown = vm.run("fabricctl", "links", "--json", "--socket", SOCKET).check().out
    assert [link["netdev"] for link in json.loads(shown)] == ["rail1"]


def test_a_pulled_cable_of_the_pod_is_seen_and_counted(pods):
    vm = pods.alpha
    wait_state(vm, "up")
    before = links(vm)["rail1"]["flaps"]
    pods.set_cable(1, up=False)
    wait_state(vm, "down")
    pods.set_cable(1, up=True)
    wait_state(vm, "up", "probation")
    assert links(vm)["rail1"]["flaps"] == before + 1


def test_when_the_pod_goes_all_of_it_ends_and_its_nic_comes_back(pods):
    vm = pods.alpha
    units = [f"{unit}@{UNIT}.service" for unit in ("fabricd", "fabric-prober", "fabric-netns")]
    assert {show(vm, unit, "ActiveState")["ActiveState"] for unit in units} == {"active"}
    vm.run("ip", "netns", "del", NAME).check()
    until(lambda: all(show(vm, unit, "ActiveState")["ActiveState"] == "inactive" for unit in units),
          LONG, "all units end")  # fmt: skip
    until(lambda: "rail1" in devices(vm), LONG, "the NIC is the host's again")
    assert vm.run("ls", "/run/fabricd-netns-sys", "/run/fabricd-netns").out.split() == [
        "/run/fabricd-netns:", "/run/fabricd-netns-sys:",
    ]  # fmt: skip
    # The other machine's pod lives. Its peer sent a bye, or the NIC was gone before it could.

    def knows():
        link = links(pods.beta).get("rail1")
        return link and (link["state"] == "down" or all(path["gone"] for path in link["paths"]))

    until(knows, LONG, "the other pod knows that its peer went")

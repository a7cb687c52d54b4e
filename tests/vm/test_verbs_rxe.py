"""Soft-RoCE on a stock Debian kernel: real verbs over two machines' virtio NICs."""

import json
import time
from pathlib import Path

import pytest

from lab.vm import pair

pytestmark = pytest.mark.nightly  # two machines: minutes for their boot alone

GUEST = Path(__file__).parent / "guest"
PYTHON = "/opt/fabricd/bin/python3"
PORT_DOWN, PORT_ACTIVE = 1, 4  # enum ibv_port_state
EVENT_PORT_ACTIVE, EVENT_PORT_ERR = 9, 10  # enum ibv_event_type
PATIENCE_S = 240  # a program's start takes 20 times longer under emulation
ETHERNET = 2  # IBV_LINK_LAYER_ETHERNET


def devices(vm):
    script = (GUEST / "devices.py").read_text()
    return json.loads(vm.run(PYTHON, "-", stdin=script).check().out)


def until(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.1)
    return value


class Events:
    """The async events of one device, collected in the guest."""

    def __init__(self, vm, device):
        self.vm, self.path = vm, f"/run/{device}.events"
        vm.write("/run/port_events.py", (GUEST / "port_events.py").read_text())
        self.job = vm.begin(
            "sh", "-c", f"exec {PYTHON} /run/port_events.py {device} >{self.path} 2>&1", timeout=600
        )
        until(lambda: self.rows() or not self.job.running, "pyverbs listens for events")
        assert self.rows()[0] == {"ready": True}

    def rows(self):
        text = self.vm.run("cat", self.path).out
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def kinds(self):
        return [row["event"] for row in self.rows()[1:]]


def test_pyverbs_lists_active_ports(rdma):
    for host, vm in enumerate((rdma.alpha, rdma.beta)):
        found = devices(vm)
        assert sorted(found) == ["rxe0", "rxe1"]
        for rail in range(rdma.rails):
            port = found[f"rxe{rail}"]
            assert (port["state"], port["link_layer"]) == (PORT_ACTIVE, ETHERNET)
            assert port["gids"][0].startswith("fe80:")
            last = [int(part) for part in pair.address(host, rail).split(".")]
            assert port["gids"][1].endswith("ffff:{:02x}{:02x}:{:02x}{:02x}".format(*last))


@pytest.mark.parametrize("rail", [0, 1])
def test_rc_pingpong_between_machines(rdma, rail):
    argv = ["ibv_rc_pingpong", "-d", f"rxe{rail}", "-g", "1", "-n", "300", "-c"]
    port = ["-p", str(18515 + rail)]
    server = rdma.beta.begin(*argv, *port, timeout=PATIENCE_S)
    listening = f"ss -Hltn sport = :{18515 + rail} | grep -q ."
    until(lambda: rdma.beta.run("sh", "-c", listening).rc == 0, "the server listens")
    client = rdma.alpha.run(*argv, *port, pair.address(1, rail), timeout=PATIENCE_S).check()
    served = server.wait().check()
    for result in (client, served):
        assert "300 iters" in result.out
        assert "invalid data" not in result.out + result.err


def test_unplugged_cable_is_a_port_event_on_that_rail_alone(rdma):
    vm = rdma.alpha
    events = [Events(vm, "rxe0"), Events(vm, "rxe1")]
    downs = "/sys/class/net/rail0/carrier_down_count"
    before = int(vm.run("cat", downs).check().out)
    try:
        rdma.set_cable(0, up=False)
        until(lambda: events[0].kinds() == [EVENT_PORT_ERR], "PORT_ERR on rxe0")
        state = {name: port["state"] for name, port in devices(vm).items()}
        assert state == {"rxe0": PORT_DOWN, "rxe1": PORT_ACTIVE}
        state_of = lambda vm: devices(vm)["rxe0"]["state"]  # noqa: E731
        until(lambda: state_of(rdma.beta) == PORT_DOWN, "the other end sees it, too")
        rdma.set_cable(0, up=True)
        until(lambda: events[0].kinds() == [EVENT_PORT_ERR, EVENT_PORT_ACTIVE], "PORT_ACTIVE")
        until(lambda: state_of(vm) == PORT_ACTIVE, "the port is active")
        assert events[1].kinds() == []
        assert int(vm.run("cat", downs).check().out) == before + 1
    finally:
        rdma.set_cable(0, up=True)
        for watcher in events:
            watcher.job.kill()


INVENTORY = """
import json
from fabricd.links.ibports import IbPorts
ports = IbPorts(["rail0", "rail1", "lo"])
print(json.dumps([ports.note, *map(ports.active, ["rail0", "rail1", "lo"])]))
"""


def test_the_daemons_inventory_follows_the_ports(rdma):
    def inventory():
        return json.loads(rdma.alpha.run(PYTHON, "-", stdin=INVENTORY).check().out)

    assert inventory() == ["rail0=rxe0/1, rail1=rxe1/1", True, True, None]
    try:
        rdma.set_cable(1, up=False)
        until(lambda: inventory()[1:] == [True, False, None], "rail1's port is not active")
    finally:
        rdma.set_cable(1, up=True)
    until(lambda: inventory()[1:] == [True, True, None], "rail1's port is active again")

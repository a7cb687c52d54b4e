"""One of three machines loses its power: the others hear it on no path, and blame nobody else.

A peer that is silent on every link is a host event: no link, and no path of it, changes its state
(docs/design/detection.md).
"""

import contextlib
import shutil
import time

import pytest
import watched
from installed import ask, until

from lab.vm import image, machine, pair, payload
from lab.vm.switch import Switch

NAMES = ("killed-a", "killed-b", "killed-c")
VICTIM = 2
MAC = "52:54:00:fc:{:02x}:{:02x}"
PATIENCE_S = 300
STAYS_S = 30
"""For so long nobody else may be blamed. After about 8 s the dead host has no neighbour's address
any more, and what is sent to it waits in the kernel."""


@pytest.fixture(scope="module")
def hosts():
    """Three machines on two switches, a soft-RoCE device on each rail, all paths heard."""
    machine.clean_stale()
    base = image.base()
    mounts = {payload.PREFIX: payload.disk(base)}
    directory = machine.RUN / "killed-cables"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        switches = [
            stack.enter_context(
                Switch(directory, f"rail{rail}", [MAC.format(host, rail) for host in range(3)])
            )
            for rail in range(watched.RAILS)
        ]
        vms = [
            stack.enter_context(
                machine.Vm(name, base, [switch.nics[host] for switch in switches], mounts)
            )
            for host, name in enumerate(NAMES)
        ]
        for host, vm in enumerate(vms):
            vm.wait_booted()
            pair.set_up(vm, host, watched.RAILS)
            watched.add_rxe(vm, watched.RAILS)
        for host, vm in enumerate(vms):
            watched.start(vm, host, NAMES)
        for vm in vms:
            until(lambda vm=vm: watched.heard(vm, peers=2), PATIENCE_S, "all paths are up")
        yield vms


def silent(vm, peer):
    """No path to that peer is heard."""
    found = [path for path in watched.paths(vm) if path["peer"] == peer]
    return len(found) == watched.RAILS and not any(path["heard"] for path in found)


def judged(vm):
    """What a host says of its own links, and whom it blames."""
    links = ask(vm, "links", socket=watched.SOCKET) or ()
    own = {link["netdev"]: (link["state"], link["rdma"]["state"]) for link in links}
    located = ask(vm, "explain", socket=watched.SOCKET, link="rail0") or {"located": []}
    return own, located["located"]


@pytest.mark.nightly
def test_a_killed_machine_is_down_at_all_peers_and_nobody_else_is_blamed(hosts):
    others = hosts[:VICTIM]
    name = NAMES[VICTIM]
    hosts[VICTIM].power_off()
    killed = time.monotonic()
    for vm in others:
        status = until(
            lambda vm=vm: (ask(vm, "status", socket=watched.SOCKET) or {}).get("silent_hosts"),
            PATIENCE_S, "a host is silent",
        )  # fmt: skip
        assert status == [name]
        until(lambda vm=vm: silent(vm, name), PATIENCE_S, "its paths are silent")
        print(f"{vm.name} knew it {time.monotonic() - killed:.1f} s later")
    end = time.monotonic() + STAYS_S
    while time.monotonic() < end:
        for vm in others:
            assert silent(vm, name)
            living = [path for path in watched.paths(vm) if path["peer"] != name]
            assert len(living) == watched.RAILS
            broken = [path for path in living if not watched.is_up(path)]
            assert not broken, f"{time.monotonic() - killed:.1f} s later, {vm.name}: {broken}"
            own, located = judged(vm)
            assert own == {"rail0": ("up", "up"), "rail1": ("up", "up")}
            assert [blame for blame in located if not blame.startswith(f"host {name}")] == []
        time.sleep(1)

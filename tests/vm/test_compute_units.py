"""fabric-compute and its broker under a real systemd, as docs/operate/compute.md sets them up.

mosquitto is not in the machine's image. A program of its name stands in: it shows that root makes
all files before, and that the unit's sandbox lets ``fabric-compute broker`` become the broker.
"""

import re

import pytest
from installed import LONG, REPO, SLOW_START, follow, journal, show, until

pytestmark = pytest.mark.nightly  # some starts of Python, 20 s each under emulation

DOC = REPO / "docs/operate/compute.md"
CONFIG = 'name = "c0"\n[broker]\nhost = "127.0.0.1"\nport = 1883\n'
MOSQUITTO = "#!/bin/sh\nexec sleep infinity\n"
GET = (
    "import sys, urllib.request, urllib.error\n"
    "try: print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())\n"
    "except urllib.error.HTTPError as e: print(e.code, e.read().decode())"
)
UNITS = ("fabric-compute", "fabric-broker")


@pytest.fixture(scope="module")
def management(machines):
    """The first machine as a management host, too, with both services started."""
    vm = machines.alpha
    follow(vm, "units", doc=DOC)
    vm.write("/usr/sbin/mosquitto", MOSQUITTO, 0o755)
    vm.write("/etc/fabricd/compute.toml", CONFIG)
    vm.write("/etc/systemd/system/fabric-compute.service.d/emulated.conf", SLOW_START)
    follow(vm, "broker", doc=DOC)
    follow(vm, "start", doc=DOC)
    yield vm
    vm.run("systemctl", "stop", *UNITS)
    vm.run("rm", "-rf", "/usr/sbin/mosquitto", "/etc/systemd/system/fabric-compute.service.d")


def get(vm, path):
    return vm.run("/usr/bin/python3", "-I", "-c", GET, f"http://127.0.0.1:19201{path}").out


def test_both_run_as_their_users_in_a_small_sandbox(management):
    vm = management
    for unit in UNITS:
        state = show(vm, unit, "ActiveState", "SubState", "User", "UnitFileState", "NRestarts")
        assert state == {
            "ActiveState": "active", "SubState": "running", "User": unit,
            "UnitFileState": "enabled", "NRestarts": "0",
        }, journal(vm, unit)  # fmt: skip
        out = vm.run("systemd-analyze", "security", "--no-pager", f"{unit}.service").check().out
        score = re.search(rf"exposure level for {unit}\.service: ([\d.]+)", out)
        assert float(score[1]) <= 2.5, out
    assert show(vm, "fabric-compute", "StatusText")["StatusText"] == "mode observe"
    places = ("compute", "broker", "broker/data", "authority")
    listing = vm.run("stat", "-c", "%a %U", *(f"/var/lib/fabric-{place}" for place in places))
    assert listing.check().out.splitlines() == [
        "750 fabric-compute", "755 root", "700 fabric-broker", "700 root",
    ]  # fmt: skip
    files = vm.run("ls", "/var/lib/fabric-broker").check().out.split()
    assert {"mosquitto.conf", "access.acl", "ca.pem", "data"} <= set(files), files


def test_the_broker_cannot_see_the_authority_or_change_its_own_rules(management):
    vm = management
    pid = show(vm, "fabric-broker", "MainPID")["MainPID"]
    within = ("nsenter", "-t", pid, "-m", "--", "setpriv", "--reuid=fabric-broker",
              "--regid=fabric-broker", "--clear-groups")  # fmt: skip
    assert vm.run(*within, "cat", "/var/lib/fabric-broker/server.key").rc == 0
    assert vm.run(*within, "touch", "/var/lib/fabric-broker/data/new").rc == 0
    for command in (
        ("ls", "/var/lib/fabric-authority"),
        ("cat", "/var/lib/fabric-authority/ca.key"),
        ("touch", "/var/lib/fabric-broker/new"),
        ("touch", "/var/lib/fabric-broker/access.acl"),
    ):
        assert vm.run(*within, *command).rc != 0, command


def test_without_a_broker_it_is_alive_and_not_ready(management):
    vm = management
    until(lambda: get(vm, "/healthz") == "ok\n\n", LONG, "it makes cycles")
    assert get(vm, "/readyz").startswith("503 no connection to the broker")


def test_killed_it_comes_back_with_its_mode_and_stops_cleanly(management):
    vm = management
    vm.run("/opt/fabricd/bin/fabric-compute", "promote", "migrate", timeout=LONG).check()
    until(
        lambda: 'fabric_compute_mode{mode="migrate"} 1.0' in get(vm, "/metrics"), LONG, "promoted"
    )
    pid = show(vm, "fabric-compute", "MainPID")["MainPID"]
    vm.run("kill", "-9", pid).check()

    def is_back():
        state = show(vm, "fabric-compute", "ActiveState", "NRestarts")
        return state == {"ActiveState": "active", "NRestarts": "1"}

    until(is_back, LONG, "restarted")
    assert show(vm, "fabric-compute", "StatusText")["StatusText"] == "mode migrate"
    vm.run("systemctl", "stop", "fabric-compute", timeout=LONG).check()
    state = show(vm, "fabric-compute", "Result", "ExecMainStatus")
    assert state == {"Result": "success", "ExecMainStatus": "0"}, journal(vm, "fabric-compute")


def test_removal_leaves_nothing_of_them(management):
    vm = management
    follow(vm, "remove", doc=DOC)
    kept = " ".join(
        ["/etc/fabricd/compute.toml", "/var/lib/fabric-authority",
         *(f"/var/lib/{unit}" for unit in UNITS),
         *(f"/etc/systemd/system/{unit}.service" for unit in UNITS)]
    )  # fmt: skip
    assert vm.run("sh", "-c", f"ls -d {kept} 2>/dev/null").out == ""
    for user in UNITS:
        assert vm.run("getent", "passwd", user).rc != 0

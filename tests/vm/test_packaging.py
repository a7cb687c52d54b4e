"""The product as docs/operate/install.md installs it, under a real systemd on Debian's kernel.

The tests share two installed hosts and go on from where the one before stopped.
"""

import json
import re
import time

import pytest
from installed import (
    KEY,
    LONG,
    SLOW_START,
    SOCKET,
    UNITS,
    UPGRADE,
    ask,
    block,
    follow,
    journal,
    show,
    until,
)  # fmt: skip

from lab.vm import pair

# Under emulation a host is 20 times slower than the default cadence is meant for; there is no path
# across the rails, and no use for a clock.
CONFIG = """
[host]
name = "{name}"

[probe]
link_interval_ms = 100
clock_train_hz = 0
cross_rail_peers = 0

[hold]
hold_down_s = 1.0
probation_s = 2.0

[[links]]
netdev = "rail0"
rail = 0

[[links]]
netdev = "rail1"
rail = 1

[[peers]]
host = "{peer}"
addresses = [{{ rail = 0, address = "{a0}" }}, {{ rail = 1, address = "{a1}" }}]
"""

MANAGEMENT_UNITS = {"fabric-compute.service", "fabric-broker.service"}
"""Of another host: `test_compute_units.py`."""
CALM = "/etc/fabricd/conf.d/calm.toml"
UP = ("up", "probation")


def link_states(vm):
    return {link["netdev"]: link["state"] for link in ask(vm, "links") or []}


def wait_states(vm, **wanted):
    def right():
        seen = link_states(vm)
        return all(seen.get(netdev) in allowed for netdev, allowed in wanted.items())

    try:
        until(right, LONG, f"{vm.name}: {wanted}")
    except AssertionError as error:
        raise AssertionError(f"{error}; is {link_states(vm)}\n{journal(vm, 'fabricd')}") from None


def flaps(vm, netdev):
    """Carrier losses of a link by (counter of the daemon, sum of the timeline)."""
    links = {link["netdev"]: link["flaps"] for link in ask(vm, "links")}
    rows = ask(vm, "timeline", kind="flap", link=netdev)
    return links[netdev], sum(row["count"] for row in rows)


def kernel_downs(vm, netdev):
    return int(vm.run("cat", f"/sys/class/net/{netdev}/carrier_down_count").check().out)


def restarted(vm, unit, before):
    """Whether systemd has started ``unit`` again since ``before`` and it is active."""
    now = show(vm, unit, "NRestarts", "ActiveState")
    return now["ActiveState"] == "active" and int(now["NRestarts"]) > int(before["NRestarts"])


@pytest.fixture(scope="module")
def hosts(machines):
    """Both machines installed by the documented steps, both services started."""
    both = (machines.alpha, machines.beta)
    for host, vm in enumerate(both):
        follow(vm, "link")
        vm.write("/etc/fabricd/probe.key", KEY, 0o600)
        text = CONFIG.format(
            name=vm.name, peer=both[1 - host].name,
            a0=pair.address(1 - host, 0), a1=pair.address(1 - host, 1),
        )  # fmt: skip
        vm.write("/etc/fabricd/fabricd.toml", text)
        if vm is machines.beta:
            vm.write(CALM, "[host]\nrealtime = false\n")
        for unit in ("fabricd", "fabric-clock"):
            vm.write(f"/etc/systemd/system/{unit}.service.d/emulated.conf", SLOW_START)
    follow(machines.alpha, "check")
    jobs = [vm.begin("bash", "-ec", block("units"), timeout=2 * LONG) for vm in both]
    for vm, job in zip(both, jobs, strict=True):
        result = job.wait()
        logs = "".join(journal(vm, x) for x in ("fabricd", "fabric-prober", "fabric-clock"))
        assert result.rc == 0, f"{result.err}\n{logs}"
        # Ten times a second numpy: an emulated core has time for little else.
        vm.run(
            "systemctl", "set-property", "--runtime", "fabric-clock.service", "CPUQuota=25%"
        ).check()
    machines.beta.run("systemctl", "stop", "fabric-clock").check()
    yield machines
    for rail in range(machines.rails):
        machines.set_cable(rail, up=True)
    for vm in both:
        vm.run("systemctl", "stop", "fabricd", "fabric-clock", "fabric-prober")


def test_units_start_in_order_and_report_ready(hosts):
    started = "ExecMainStartTimestampMonotonic"
    daemon = show(hosts.alpha, "fabricd", "Type", "ActiveState", "SubState", "StatusText",
                  "NRestarts", "UnitFileState", "WatchdogUSec", started)  # fmt: skip
    assert daemon["Type"] == "notify"
    assert (daemon["ActiveState"], daemon["SubState"]) == ("active", "running")
    assert daemon["StatusText"] == "mode observe"
    assert daemon["UnitFileState"] == "enabled"
    assert daemon["WatchdogUSec"] not in ("0", "infinity", "")
    assert daemon["NRestarts"] == "0"
    prober = show(hosts.alpha, "fabric-prober", "ActiveState", "UnitFileState", "NRestarts",
                  started)  # fmt: skip
    assert (prober["ActiveState"], prober["UnitFileState"]) == ("active", "enabled")
    assert prober["NRestarts"] == "0"
    assert int(prober[started]) < int(daemon[started])


def test_the_unit_lets_the_daemon_be_real_time_and_a_reload_ends_it(hosts):
    vm = hosts.alpha
    pid = show(vm, "fabricd", "MainPID")["MainPID"]

    def policies():
        return set(re.findall(r"SCHED_[A-Z]+", vm.run("chrt", "-a", "-p", pid).check().out))

    assert policies() == {"SCHED_RR"}
    # Nor could it stay so: where it takes all of an emulated core, nothing else would ever run.
    vm.write(CALM, "[host]\nrealtime = false\n")
    vm.run("systemctl", "reload", "fabricd", timeout=LONG).check()
    until(lambda: policies() == {"SCHED_OTHER"}, LONG, "as any other process")


def test_the_documented_check_finds_it_healthy(hosts):
    for vm in (hosts.alpha, hosts.beta):
        wait_states(vm, rail0=("up",), rail1=("up",))

    def hears_its_peer():
        found = ask(hosts.alpha, "links") or []
        return len(found) == 2 and all(link["probes"]["received"] > 0 for link in found)

    until(hears_its_peer, LONG, "probes of the peer arrive on both rails")
    try:
        out = follow(hosts.alpha, "verify")
        # Under its unit it sees of which boot its page is.
        said = json.loads(hosts.alpha.run("cat", "/run/fabricd/clock-boot.json").check().out)
        boot = hosts.alpha.run("cat", "/proc/sys/kernel/random/boot_id").check().out
        assert said["boot"] == boot.strip()
    finally:
        hosts.alpha.run("systemctl", "stop", "fabric-clock").check()
    assert out.splitlines()[:3] == ["active"] * 3
    assert "Fabric time" in out
    assert "rail0" in out
    assert "rail1" in out
    status = ask(hosts.alpha, "status")
    assert status["prober"]["up"]
    assert status["links"] == {"up": 2}
    # No address is in the configuration, and none of the peer's packets was ever refused for that.
    assert status["prober"]["refused"]["auth"] == 0, status


@pytest.mark.parametrize(
    ("unit", "worst"), [("fabricd", 2.5), ("fabric-prober", 3.5), ("fabric-clock", 2.5)]
)
def test_exposure_is_small(hosts, unit, worst):
    argv = ["systemd-analyze", "security", "--no-pager", f"{unit}.service"]
    out = hosts.alpha.run(*argv).check().out
    score = re.search(rf"exposure level for {unit}\.service: ([\d.]+)", out)
    assert score is not None, out
    assert float(score[1]) <= worst, out


def test_promote_is_refused_to_nobody_and_done_for_root(hosts):
    vm = hosts.alpha
    # Straight at the socket: any user may ask, only root and the daemon's own may change.
    script = (
        "import socket; s = socket.socket(socket.AF_UNIX); "
        f's.connect(\'{SOCKET}\'); s.sendall(b\'{{"op": "promote", "mode": "steer"}}\\n\'); '
        "print(s.recv(4096).decode())"
    )
    nobody = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-I", "-c", script]
    refused = vm.run(*nobody)
    assert refused.rc != 0 or not json.loads(refused.out)["ok"], refused
    assert ask(vm, "status")["mode"] == "observe"
    follow(vm, "promote")
    assert ask(vm, "status")["mode"] == "steer"


@pytest.mark.nightly
def test_a_step_of_the_wall_clock_is_no_fault(hosts):
    """By NTP's first answer or by hand: probes are paced and judged by clocks that nobody sets."""
    both = (hosts.alpha, hosts.beta)

    def moved(vm):
        """How often links were taken for broken."""
        rows = ask(vm, "timeline", kind="link_state")
        return sum(row["to"] == "down" for row in rows)

    def received():
        return sum(link["probes"]["received"] for link in ask(hosts.alpha, "links"))

    for vm in both:
        wait_states(vm, rail0=UP, rail1=UP)
    before = [moved(vm) for vm in both]
    counted = received()
    for step_s in (600, -600):
        stepped = f"date -s @$(( $(date +%s) + {step_s} ))"
        hosts.alpha.run("sh", "-c", stepped).check()
        time.sleep(10)  # Some hundred link intervals of 100 ms.
    assert received() > counted + 100, "probes went on"
    assert [moved(vm) for vm in both] == before
    for vm in both:
        assert set(link_states(vm).values()) <= set(UP), link_states(vm)


def test_unplugged_cable_shows_down_and_its_flap(hosts):
    vm = hosts.alpha
    wait_states(vm, rail0=("up",), rail1=("up",))
    counter, rows = flaps(vm, "rail0")
    hosts.set_cable(0, up=False)
    wait_states(vm, rail0=("down",), rail1=("up",))
    asked = vm.run("fabricctl", "links", "--json").check()
    seen = {link["netdev"]: (link["state"], link["weight"]) for link in json.loads(asked.out)}
    assert seen == {"rail0": ("down", 0), "rail1": ("up", 1)}
    hosts.set_cable(0, up=True)
    wait_states(vm, rail0=UP)
    assert flaps(vm, "rail0") == (counter + 1, rows + 1)
    text = vm.run("fabricctl", "timeline", "--link", "rail0").check().out
    assert re.search(r"rail0.*down", text, re.IGNORECASE), text


def test_killed_daemon_comes_back_with_state_and_the_flap_it_missed(hosts):
    vm = hosts.alpha
    wait_states(vm, rail0=UP, rail1=UP)
    ask(vm, "promote", mode="steer")
    rail0, (counter, rows) = flaps(vm, "rail0"), flaps(vm, "rail1")
    prober = show(vm, "fabric-prober", "MainPID")["MainPID"]
    daemon = show(vm, "fabricd", "MainPID", "NRestarts")
    vm.run("kill", "-9", daemon["MainPID"]).check()
    # The new process is still importing. The cable stays out until the kernel has seen it: shorter,
    # and the emulated NIC reports no change at all.
    lost = kernel_downs(vm, "rail1")
    hosts.set_cable(1, up=False)
    until(lambda: kernel_downs(vm, "rail1") == lost + 1, LONG, "the kernel saw the cable out")
    hosts.set_cable(1, up=True)
    until(lambda: restarted(vm, "fabricd", daemon), LONG, "fabricd was restarted")
    wait_states(vm, rail0=UP, rail1=UP)
    assert flaps(vm, "rail0") == rail0
    assert flaps(vm, "rail1") == (counter + 1, rows + 1)
    assert ask(vm, "status")["mode"] == "steer"
    assert show(vm, "fabric-prober", "MainPID")["MainPID"] == prober


SQUAT = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-I", "-c",
         "import socket; socket.create_server(('127.0.0.1', 19200))"]  # fmt: skip


@pytest.mark.nightly
def test_nobody_takes_the_metrics_address_while_the_daemon_restarts_or_stands_still(hosts):
    vm = hosts.alpha
    assert ask(vm, "status")["metrics"]["inherited"]
    old = show(vm, "fabricd", "MainPID", "NRestarts")
    vm.run("kill", "-9", old["MainPID"]).check()
    tries = [vm.run(*SQUAT) for _ in range(3)]
    until(lambda: restarted(vm, "fabricd", old), LONG, "fabricd was restarted")
    vm.run("systemctl", "stop", "fabricd", timeout=LONG).check()
    tries.append(vm.run(*SQUAT))
    # Who scrapes a daemon that somebody stopped waits, and does not start it.
    connect = "import socket; socket.create_connection(('127.0.0.1', 19200), 60)"
    for _ in range(2):
        vm.run("/usr/bin/python3", "-I", "-c", connect).check()
    assert show(vm, "fabricd", "ActiveState")["ActiveState"] == "inactive"
    vm.run("systemctl", "start", "fabricd", timeout=LONG).check()
    assert ask(vm, "status")["metrics"]["bound"]
    for done in tries:
        assert done.rc != 0
        assert "Address already in use" in done.err


def test_stats_pages_lie_in_a_file_system_of_their_own(hosts):
    vm = hosts.alpha
    assert vm.run("stat", "-c", "%a %U", "/run/fabricd/stats").check().out == "1733 fabricd\n"
    found = vm.run("findmnt", "-no", "FSTYPE,OPTIONS", "/run/fabricd/stats").check().out
    for wanted in ("tmpfs", "size=65536k", "nr_inodes=4096", "nosuid", "nodev", "noexec"):
        assert wanted in found
    # The daemon sees it, and may remove what lies there.
    pid = show(vm, "fabricd", "MainPID")["MainPID"]
    argv = ["nsenter", "-t", pid, "-m", "setpriv", "--reuid=fabricd", "--clear-groups", "sh", "-c",
            "touch /run/fabricd/stats/x && rm /run/fabricd/stats/x"]  # fmt: skip
    vm.run(*argv).check()


def test_killed_prober_comes_back(hosts):
    vm = hosts.alpha
    old = show(vm, "fabric-prober", "MainPID", "NRestarts")
    daemon = show(vm, "fabricd", "MainPID")["MainPID"]
    vm.run("kill", "-9", old["MainPID"]).check()
    until(lambda: restarted(vm, "fabric-prober", old), LONG, "the prober was restarted")
    until(lambda: (ask(vm, "status") or {"prober": {"up": False}})["prober"]["up"], LONG,
          "the daemon reads the new prober's ring")  # fmt: skip
    wait_states(vm, rail0=UP, rail1=UP)
    assert show(vm, "fabricd", "MainPID")["MainPID"] == daemon


@pytest.mark.nightly  # twelve starts of Python, 20 s each under emulation
def test_keys_are_rotated_by_the_documented_steps(hosts):
    both = (hosts.alpha, hosts.beta)
    pids = [show(vm, "fabric-prober", "MainPID") for vm in both]
    new = KEY[::-1]
    for vm in both:
        vm.write("/root/new.key", new, 0o600)

    def everywhere(*argv):
        jobs = [vm.begin(*argv, timeout=LONG) for vm in both]
        return [job.wait().check().out for job in jobs]

    for step in (["add", "--new", "/root/new.key"], ["use"], ["drop"]):
        told = everywhere("fabricctl", "key", "rotate", *step)
        assert told[0] == told[1], "the same fingerprints on both"
        everywhere("systemctl", "reload", "fabric-prober")
    for vm, pid in zip(both, pids, strict=True):
        assert show(vm, "fabric-prober", "MainPID") == pid, "it went on"
        assert vm.run("cat", "/etc/fabricd/probe.key").check().out == f"{new}\n"
        assert vm.run("stat", "-c", "%a %U", "/etc/fabricd/probe.key").check().out == "600 root\n"
    before = [link["probes"]["received"] for link in ask(hosts.alpha, "links")]

    def still_heard():
        found = ask(hosts.alpha, "links") or []
        return all(x["probes"]["received"] > b for x, b in zip(found, before, strict=True))

    until(still_heard, LONG, "probes under the new key arrive on both rails")
    for vm in both:
        assert ask(vm, "status")["prober"]["refused"]["auth"] == 0


@pytest.mark.nightly
def test_stopped_daemon_is_ended_by_the_watchdog(hosts):
    vm = hosts.alpha
    old = show(vm, "fabricd", "MainPID", "NRestarts")
    vm.run("kill", "-STOP", old["MainPID"]).check()
    until(lambda: restarted(vm, "fabricd", old), LONG, "the watchdog had fabricd restarted")
    assert "Watchdog timeout" in vm.run("journalctl", "-u", "fabricd", "--no-pager").out
    wait_states(vm, rail0=UP, rail1=UP)


def test_stop_is_clean_and_a_bad_configuration_is_not_started(hosts):
    vm = hosts.alpha
    units = ("fabricd", "fabric-clock", "fabric-prober")
    vm.run("systemctl", "stop", *units).check()
    for unit in units:
        state = show(vm, unit, "ActiveState", "Result", "ExecMainStatus")
        assert state == {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}
    assert vm.run("pgrep", "-f", "/opt/fabricd/bin").rc == 1
    good = vm.run("cat", "/etc/fabricd/fabricd.toml").check().out
    bad = good.replace("link_interval_ms = 100", "link_interval_ms = 0")
    line = 1 + bad.splitlines().index("link_interval_ms = 0")
    try:
        vm.write("/etc/fabricd/fabricd.toml", bad)
        assert vm.run("systemctl", "start", "fabricd", timeout=LONG).rc != 0
        text = journal(vm, "fabricd")
        assert f"/etc/fabricd/fabricd.toml:{line}: probe.link_interval_ms:" in text
        assert "allowed: an integer from 1 to 10000" in text
        # Starting again would not cure it.
        assert show(vm, "fabricd", "ActiveState")["ActiveState"] == "failed"
    finally:
        vm.write("/etc/fabricd/fabricd.toml", good)
    vm.run("systemctl", "start", "fabric-prober", "fabricd", timeout=LONG).check()
    assert "stopped" in [row["reason"] for row in ask(vm, "timeline", kind="daemon")]


def test_removal_leaves_nothing(hosts):
    vm = hosts.alpha
    follow(vm, "remove", doc=UPGRADE)
    # By name: the machine's own agent is a fabric-*.service too.
    kinds = ("*.service", "*.socket", "*.mount")
    found = {unit.name for kind in kinds for unit in UNITS.glob(kind)} - MANAGEMENT_UNITS
    units = [f"/etc/systemd/system/{name}" for name in sorted(found)]
    assert len(units) == 6
    kept = " ".join(["/etc/fabricd", "/var/lib/fabricd", "/run/fabricd", *units])
    assert vm.run("sh", "-c", f"ls -d {kept} 2>/dev/null").out == ""
    assert vm.run("systemctl", "is-active", "fabricd").rc != 0
    assert vm.run("getent", "passwd", "fabricd").rc != 0

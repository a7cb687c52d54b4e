"""The site's command of a real fabric-compute cuts the power of a lab host, once for each fence."""

import json
import os
import signal
import stat
import subprocess
import sys

import pytest
from compute_world import Compute, Mosquitto, RealWorld, settings

from lab.network import netns

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

# What a site would do by its BMCs: the lab's power is what runs in the host's network namespace.
CUT_POWER = """#!{python} -I
import fcntl, hashlib, json, os, pathlib, signal, subprocess, sys, time

here = pathlib.Path({here!r})
request = json.load(sys.stdin)
host = request["fields"]["host"]
with (here / "runs").open("a") as runs:
    runs.write(json.dumps([host, os.getpid()]) + "\\n")
if (here / "hangs").exists():
    (here / "hangs").unlink()
    print("the BMC does not answer", flush=True)
    time.sleep(600)
with (here / "lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    done = here / hashlib.sha256(request["id"].encode()).hexdigest()
    if done.exists():
        print(f"{{host}} was off")
        sys.exit(0)
    found = subprocess.run(["ip", "netns", "pids", {prefix!r} + host], check=True,
                           capture_output=True, text=True).stdout.split()
    for pid in found:
        os.kill(int(pid), signal.SIGKILL)
    done.touch()
print(f"{{host}} is off, {{len(found)}} processes")
"""


class Power:
    """Hosts of the lab that can be switched off, and the command that does it."""

    def __init__(self, directory, hosts):
        self.directory, self.prefix = directory, f"pw{os.getpid()}-"
        self.command = directory / "cut-power"
        self.command.write_text(
            CUT_POWER.format(python=sys.executable, here=str(directory), prefix=self.prefix)
        )
        self.command.chmod(self.command.stat().st_mode | stat.S_IXUSR)
        self.machines = {}
        for host in hosts:
            subprocess.run(["ip", "netns", "add", self.prefix + host], check=True)
            argv = ["ip", "netns", "exec", self.prefix + host, "sleep", "1000"]
            self.machines[host] = subprocess.Popen(argv)

    def hang(self):
        (self.directory / "hangs").touch()

    def runs(self, host):
        """Process ids of the command's runs for that host."""
        if not (self.directory / "runs").exists():
            return []
        rows = map(json.loads, (self.directory / "runs").read_text().splitlines())
        return [pid for name, pid in rows if name == host]

    def is_off(self, host):
        return self.machines[host].poll() is not None

    def close(self):
        for host, machine in self.machines.items():
            machine.kill()
            machine.wait()
            subprocess.run(["ip", "netns", "del", self.prefix + host], check=True)


@pytest.fixture
def power(tmp_path):
    netns.ready()
    power = Power(tmp_path, ["h1", "h2"])
    yield power
    power.close()


def results(compute, host):
    """(result, output) of all runs of the command for that host, by the ledger."""
    lines = [json.loads(one)["line"] for one in compute.call("ledger", "export").splitlines()]
    records = [record for record in map(json.loads, lines) if record["kind"] == "exec"]
    fields = [record["fields"] for record in records if record["fields"]["host"] == host]
    return [(one["result"], one["output"]) for one in fields]


@pytest.mark.nightly
async def test_a_lost_hosts_power_is_cut_once_though_the_command_hangs_and_compute_dies(
    tmp_path, power
):
    broker = Mosquitto(tmp_path / "mosquitto")
    broker.start()
    extra = f'[exec]\ncommand = ["{power.command}"]\ntimeout_s = 3\nattempts = 5\n'
    compute = Compute(tmp_path, broker, "c0", extra)
    world = RealWorld(settings(broker), nodes=3, spares=2)
    try:
        (compute.directory / "state").mkdir(mode=0o750)
        compute.call("promote", "migrate")
        compute.start()
        await world.until(lambda: world.step > 3, "the job trains")
        power.hang()
        world.hosts["h1"].paused = True
        await world.until(lambda: power.is_off("h1"), "the host is switched off")
        await world.until(lambda: world.takeovers == 1, "the takeover did not wait for it")
        await world.until(lambda: len(results(compute, "h1")) == 2, "both runs are noted")
        assert results(compute, "h1") == [
            ("timeout", "no end within 3 s: the BMC does not answer"),
            ("done", "h1 is off, 1 processes"),
        ]
        assert not power.is_off("h2")
        # kill -9 while the command is at work: what it has begun is not known, and it runs again.
        power.hang()
        world.hosts["h2"].paused = True
        await world.until(lambda: power.runs("h2"), "the command is at work")
        compute.kill()
        os.killpg(power.runs("h2")[0], signal.SIGKILL)  # With its unit, as systemd does.
        compute.start()
        await world.until(lambda: power.is_off("h2"), "the host is switched off")
        await world.until(lambda: len(results(compute, "h2")) == 1, "it is noted")
        assert results(compute, "h2") == [("done", "h2 is off, 1 processes")]
        # Another start repeats nothing.
        before = len(power.runs("h1")), len(power.runs("h2"))
        compute.kill()
        compute.start()
        await world.until(compute.is_ready, "back")
        await world.go(1.0)
        assert (len(power.runs("h1")), len(power.runs("h2"))) == before == (2, 2)
        assert json.loads(compute.call("ledger", "verify", "--json"))["ok"]
        compute.stop()
        assert world.violations == []
    finally:
        if compute.process is not None:
            compute.kill()
            print(compute.log.read_text()[-5000:])
        await world.close()
        broker.stop()

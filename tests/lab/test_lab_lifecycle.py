"""Labs come up fast, go away whole, and do not meet."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.cluster import Cluster, wait_until
from lab.faults.catalog import BlackHole, Carrier
from lab.lifecycle import procs, registry
from lab.lifecycle.registry import LabError
from lab.network import netns
from lab.observe.traffic import delivered

REPO = Path(__file__).resolve().parents[2]

OWNER = """
import sys, time
from lab.cluster import Cluster
from lab.faults.catalog import Carrier
with Cluster(sys.argv[1], hosts=2, rails=2) as lab:
    # Its pid is its own from the start; when it has entered its host is another matter.
    inside = lab.nodes[0].popen(["sleep", "1000"])
    lab.arm(Carrier("h0:rail0")).start()
    print(inside.pid, flush=True)
    time.sleep(1000)
"""


def owner_process(name):
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, name],
        cwd=REPO,
        stdout=subprocess.PIPE,
        text=True,
        # A shell without job control starts what is in the background with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process.stdout:
        inner = int(process.stdout.readline())
    return process, inner


def traces(name):
    """What is left of a lab."""
    found = [n for n in netns.listing("fl-") if registry.lab_of(n) == name]
    if registry.LabDir(name).root.exists():
        found.append(str(registry.LabDir(name).root))
    return found


def test_up_and_down(lab_name):
    with Cluster(lab_name) as lab:
        assert len(netns.listing(f"fl-{lab_name}-")) == 10
        assert delivered(lab.nodes[0], lab.nodes[3], 10, rail=3) == 10
        process = lab.nodes[2].popen(["sleep", "1000"])
    assert traces(lab_name) == []
    assert process.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_owner_removes_everything(lab_name, number):
    process, inner = owner_process(lab_name)
    who = procs.ProcessId.of(inner)
    assert len(traces(lab_name)) == 7
    process.send_signal(number)
    process.wait(60)
    assert traces(lab_name) == []
    assert not who.alive


def test_an_exception_removes_everything(lab_name):
    with pytest.raises(ZeroDivisionError), Cluster(lab_name, hosts=1, rails=1):
        1 / 0  # noqa: B018
    assert traces(lab_name) == []


def test_after_sigkill_the_next_start_of_any_lab_cleans_up(lab_name, cluster):
    process, inner = owner_process(lab_name)
    who = procs.ProcessId.of(inner)
    with registry.lock():  # or a test beside this one cleans up
        process.kill()
        process.wait()
        assert who.alive
        assert len(traces(lab_name)) == 7
        info = registry.load(lab_name)
        assert info.stale
    cluster(hosts=1, rails=1)
    assert traces(lab_name) == []
    assert not who.alive


def test_a_pid_file_of_somebody_else_kills_nobody(lab_name, cluster, tmp_path):
    """A stale pid file may name a pid that is another process by now."""
    bystander = subprocess.Popen(["sleep", "1000"])
    me = procs.ProcessId.of(bystander.pid)
    directory = registry.LabDir(lab_name).pids
    with registry.lock():  # or a test beside this one cleans up half of it
        directory.mkdir(parents=True)
        (directory / "1.json").write_text(
            f'{{"pid": {me.pid}, "start": {me.start - 1}, "args": ["fabricd"]}}'
        )
        (directory / "2.json").write_text('{"pid": ')
    registry.clean_stale()
    assert traces(lab_name) == []
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_two_labs_at_once(cluster):
    one = cluster(hosts=2, rails=1)
    two = cluster(hosts=2, rails=1)
    with one.inject(Carrier("h0:rail0")), one.inject(BlackHole("h1:rail0")):
        assert delivered(*one.nodes, 20) == 0
        assert delivered(*two.nodes, 20) == 20
    one.down()
    assert traces(one.topology.name) == []
    assert delivered(*two.nodes, 20) == 20


def test_names_that_are_prefixes_of_each_other(lab_name):
    with Cluster(lab_name, hosts=1, rails=1), Cluster(f"{lab_name}-h0", hosts=1, rails=1) as b:
        registry.clean_stale()
        assert len(traces(lab_name)) == 5
        b.down()
        assert len(traces(lab_name)) == 5


def test_the_same_name_twice_is_refused(cluster):
    lab = cluster(hosts=1, rails=1)
    with (
        pytest.raises(LabError, match=f"owner pid {os.getpid()}"),
        Cluster(lab.topology.name, hosts=1, rails=1),
    ):
        pass
    assert delivered(lab.nodes[0], lab.nodes[0], 1) == 1, "the first is not touched"


def test_a_killed_fault_process_leaves_nothing_for_long(cluster):
    """Packet drops end with the process; held ports come up at the next fault command."""
    lab = cluster(hosts=2, rails=2)
    command = [sys.executable, "-m", "lab", "fault", "--name", lab.topology.name, "--seconds", "0"]
    hole = subprocess.Popen([*command, "blackhole", "h0:rail0"], cwd=REPO)
    pull = subprocess.Popen([*command, "carrier", "h0:rail1"], cwd=REPO)
    wait_until(lambda: len(lab.truth()) == 2, 60, "both faults")
    assert delivered(*lab.nodes, 20) == 0
    for process in (hole, pull):
        process.kill()
        process.wait()
    assert delivered(*lab.nodes, 20) == 20
    assert not lab.nodes[0].carrier(1)
    subprocess.run(
        [*command[:-1], "0.1", "carrier", "h1:rail0"],
        cwd=REPO,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    assert lab.nodes[0].carrier(1)
    assert delivered(*lab.nodes, 20, rail=1) == 20


def test_logs_are_scanned(cluster):
    lab = cluster(hosts=1, rails=1)
    log = lab.nodes[0].dir / "fabricd.log"
    log.write_text("all is well\n")
    assert lab.sanitizer_reports() == []
    log.write_text("x\n==1==ERROR: AddressSanitizer: heap-use-after-free\n    #0 f\n")
    assert "heap-use-after-free" in lab.sanitizer_reports()[0]
    log.write_text("src/a.cc:3:4: runtime error: signed integer overflow\n")
    assert len(lab.sanitizer_reports()) == 1
    log.write_text("Traceback (most recent call last):\n  File\nValueError: 3\n")
    assert "ValueError" in lab.sanitizer_reports()[0]
    lab.expect_reports = True

"""Prober, daemon and plugin on a machine whose clock since boot has just begun."""

import json
import os
import subprocess
import sys
import time

import pytest

from lab.lifecycle import procs
from lab.testrun.just_booted import CLOCKS, command

# A lab of another time namespace would take the labs beside it for those of dead processes.
pytestmark = pytest.mark.alone

READ = """
import json, os, sys, time
from lab.lifecycle import procs
clocks = {name: time.clock_gettime(number) for name, number in json.loads(sys.argv[1]).items()}
print(json.dumps([clocks, procs.myself().start]))
sys.stdin.read()
"""


def test_clocks_begin_near_0_and_a_process_keeps_its_identity(lab_root):
    args = [sys.executable, "-c", READ, json.dumps(CLOCKS)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command(args), stdin=pipe, stdout=pipe, text=True) as process:
        clocks, start = json.loads(process.stdout.readline())
        for name, number in CLOCKS.items():
            assert 1 <= clocks[name] < min(time.clock_gettime(number), 600), name
        (child,) = subprocess.check_output(["pgrep", "-P", str(process.pid)], text=True).split()
        assert procs.ProcessId(int(child), start).alive
        process.stdin.close()
        assert process.wait() == 0


IS_ALIVE = """
import sys
from lab.lifecycle import procs
pid, start = map(int, sys.argv[1:])
print(procs.ProcessId(pid, start).alive, procs.ProcessId(pid, start - 100).alive)
"""


def test_a_process_from_before_that_time_is_known_as_well(lab_root):
    """It counted as dead, and so did every lab beside this one."""
    me = procs.myself()
    args = [sys.executable, "-c", IS_ALIVE, str(me.pid), str(me.start)]
    said = subprocess.run(command(args), check=True, capture_output=True, text=True, timeout=60)
    assert said.stdout.split() == ["True", "False"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "test",
    [
        "test_daemon_faults.py::test_carrier_down_reaches_page_timeline_and_metrics",
        pytest.param(
            "test_daemon_faults.py::test_black_hole_with_carrier_up_downs_that_link_alone[rx]",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "test_failover.py::test_one_rail_dies_and_comes_back[carrier-daemon]",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_faults_are_detected_and_steered_around(lab_root, test):
    run = [sys.executable, "-m", "pytest", "-q", f"tests/lab/{test}"]
    done = subprocess.run(
        command(run), check=False, env=os.environ, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout

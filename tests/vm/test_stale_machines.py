"""A killed owner leaves no machine behind, and no process that merely reuses an id is touched."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from lab.vm import image, machine

OWNER = """
import sys, time
from lab.vm import image, machine
vm = machine.Vm("orphan", image.base()).start()
print(vm._process.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "RUN", tmp_path)
    return tmp_path


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def record(run_dir, name, pid, pid_start, owner, owner_start):
    (run_dir / name).mkdir()
    data = {"pid": pid, "pid_start": pid_start, "owner": owner, "owner_start": owner_start}
    (run_dir / name / "machine.json").write_text(json.dumps(data))


def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_machine_of_a_dead_owner_is_ended(run_dir, sleeper):
    start = machine.start_time(sleeper.pid)
    record(run_dir, "vm", sleeper.pid, start, dead_pid(), 1)
    assert machine.clean_stale() == ["vm"]
    assert sleeper.wait(60) == -signal.SIGKILL
    assert not (run_dir / "vm").exists()


def test_machine_of_a_living_owner_stays(run_dir, sleeper):
    start, own = machine.start_time(sleeper.pid), machine.start_time(os.getpid())
    record(run_dir, "vm", sleeper.pid, start, os.getpid(), own)
    assert machine.clean_stale() == []
    assert sleeper.poll() is None
    assert (run_dir / "vm").exists()


def test_a_reused_process_id_is_not_killed(run_dir, sleeper):
    start = machine.start_time(sleeper.pid)
    record(run_dir, "vm", sleeper.pid, start - 1, dead_pid(), 1)
    assert machine.clean_stale() == ["vm"]
    assert sleeper.poll() is None


def test_a_half_written_record_is_removed(run_dir):
    (run_dir / "vm").mkdir()
    (run_dir / "vm" / "machine.json").write_text('{"pid": 1')
    assert machine.clean_stale() == ["vm"]
    assert not (run_dir / "vm").exists()


def test_qemu_dies_with_a_killed_owner():
    image.base()
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    try:
        pid = int(owner.stdout.readline())
        assert machine.start_time(pid) is not None
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    end = time.monotonic() + 60
    while machine.start_time(pid) is not None and time.monotonic() < end:
        time.sleep(0.02)
    assert machine.start_time(pid) is None
    assert f"orphan-{owner.pid}" in machine.clean_stale()

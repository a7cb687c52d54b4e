"""A NIC's clock read through a real kernel: QEMU's 82574L, plugged in and pulled out.

QEMU 7.2 does not let that clock run: it is there, and shows always the same. So what is seen here
is that the calls are right, not that time is; `tests/unit/fabricd/clock/test_clock_hardware.py` has
that.
"""

import json
import time

import pytest

PYTHON = "/opt/fabricd/bin/python3"
PATIENCE_S = 240  # a program's start takes 20 times longer under emulation
READINGS = 30

# Reads until the device is gone; says so in a file when it has enough.
READER = """
import json, sys, time
from pathlib import Path
from clocksync.pair.crossing import Crossing
from fabricd.clock.phc import PhcDevice, PhcError

device, crossing, seen, gone = PhcDevice(Path(sys.argv[1])), Crossing(), [], None
end = time.monotonic() + float(sys.argv[3])
while time.monotonic() < end and gone is None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    try:
        reading = device.read()
    except PhcError as error:
        gone = str(error)
        break
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    if reading is not None and len(seen) < int(sys.argv[2]):
        crossing.add(reading)
        seen.append([before, *reading, after])
        if len(seen) == int(sys.argv[2]):
            Path("/run/phc-read").write_text("")
    time.sleep(0.05)
print(json.dumps({"way": device.way, "seen": seen, "gone": gone, "steps": crossing.steps}))
"""


def until(vm, script, what):
    end = time.monotonic() + PATIENCE_S
    while (done := vm.run("sh", "-ec", script)).rc != 0:
        assert time.monotonic() < end, f"{what}: {vm.run('dmesg').out[-2000:]}"
        time.sleep(0.5)
    return done.out.strip()


@pytest.fixture
def phc(machines):
    """Path of the clock of a NIC that has just come into alpha."""
    vm = machines.alpha
    vm.plug("e1000e", "clocked")
    try:
        number = until(vm, "cat /sys/class/net/*/device/ptp/ptp*/uevent | grep DEVNAME", "no clock")
        yield f"/dev/{number.partition('=')[2]}"
    finally:
        if vm.run("sh", "-c", "ls /sys/class/net/*/device/ptp").rc == 0:
            vm.unplug("clocked")


@pytest.mark.nightly
def test_a_nics_clock_is_read_until_it_is_pulled_out(machines, phc):
    vm = machines.alpha
    vm.run("rm", "-f", "/run/phc-read")
    reader = vm.begin(
        PYTHON, "-", phc, str(READINGS), str(PATIENCE_S), stdin=READER, timeout=2 * PATIENCE_S
    )
    until(vm, "test -e /run/phc-read", "no readings")
    vm.unplug("clocked")
    said = json.loads(reader.wait().check().out)
    # Debian 12 has Linux 6.1: no PRECISE of this NIC, and no other clock than the wall's.
    assert said["way"] == "extended over the wall clock"
    assert len(said["seen"]) == READINGS
    for before, raw, _, half, after in said["seen"]:
        assert before <= raw <= after, "the reading lies within its call"
        assert 0 < half <= (after - before) / 2 + 1
    assert len({phc_ns for _, _, phc_ns, _, _ in said["seen"]}) == 1
    assert said["steps"] >= READINGS // 3, "a clock that stands still is none"
    assert said["gone"] is not None
    assert "No such device" in said["gone"]
    assert phc in said["gone"]

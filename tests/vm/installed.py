"""Following docs/operate/install.md on a machine, and asking what it installed."""

import json
import re
import time
from pathlib import Path

from lab.vm.wire import VmError

REPO = Path(__file__).resolve().parents[2]
DOC = REPO / "docs/operate/install.md"
CONTAINERS = REPO / "docs/operate/containers.md"
UPGRADE = REPO / "docs/operate/upgrade.md"
UNITS = REPO / "systemd"
KEY = "".join(f"{i:02x}" for i in range(32))
# The units' own limits, but for the start: imports that take 0.3 s take 20 s here, and several
# times that where others have the processors.
SLOW_START = "[Service]\nTimeoutStartSec=900\n"
SOCKET = "/run/fabricd/ctl.sock"
LONG = 600


def block(name, doc=DOC):
    """The shell block of that name in a document."""
    found = re.findall(rf"^```sh {name}\n(.*?)^```$", doc.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"{doc.name} has {len(found)} blocks {name}"
    return found[0]


def follow(vm, name, *, doc=DOC, **variables):
    """What a block prints; ``variables`` are those that the document lets its reader set."""
    script = "".join(f"{key}={value}\n" for key, value in variables.items()) + block(name, doc)
    return vm.run("bash", "-ec", script, timeout=LONG).check().out


def until(condition, seconds, what):
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.5)


def show(vm, unit, *names):
    out = vm.run("systemctl", "show", unit, "-p", ",".join(names)).check().out
    return dict(line.split("=", 1) for line in out.splitlines())


def journal(vm, unit, lines=60):
    return vm.run("journalctl", "-u", unit, "-n", str(lines), "--no-pager", "-o", "cat").out


def ask(vm, op, *, socket=SOCKET, **fields):
    """Data of one control request; None while nobody answers."""
    try:
        answer = vm.ask(socket, json.dumps({"op": op, **fields}))
    except VmError:
        return None
    if not answer:
        return None
    document = json.loads(answer)
    assert document["ok"], document
    return document["data"]
